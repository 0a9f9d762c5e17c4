"""From a table to rows to learn from: columns understood, rows split, both shares encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.columns import profile
from unbounded.tables.encoding import Encoding, Matrix, Store
from unbounded.tables.giveaways import giveaways
from unbounded.tables.reading import MISSING, Table, TableError
from unbounded.tables.target import TASKS, Target, infer_target
from unbounded.tables.text import count_of, progress_bar
from unbounded.tables.values import Floats

if TYPE_CHECKING:
    from unbounded.tables.streaming import SpooledRows

STREAM_CELLS = 100_000_000
"""Cells (rows × columns) above which a table is not held in memory: it would take about 5 GB."""
MIN_ROWS = 10
"""A table with fewer targets than this is refused."""


class Examples(NamedTuple):
    """Encoded rows with their targets."""

    x: Matrix  # (rows, features)
    y: Floats  # (rows,): class numbers from 0, or numbers


@dataclass(frozen=True)
class PreparedTable:
    """A table as a network learns from it.

    Attributes:
        table: where the rows are from.
        target: the column to predict.
        encoding: how the other columns become numbers, learnt from the training rows.
        y: the targets of all rows that have one, `(rows,)`.
        train: the rows to learn from.
        held_out: the rows to score on; there may be none.
        giveaways: columns that tell the target all by themselves.
        on_disk: where the rows to learn from are, if the table is larger than memory should hold;
            `y` and `train` are then those of a sample of them.
    """

    table: Table
    target: Target
    encoding: Encoding
    y: Floats
    train: Examples
    held_out: Examples
    giveaways: tuple[str, ...] = ()
    on_disk: "SpooledRows | None" = None

    @property
    def num_rows(self) -> int:
        """How many rows have a target."""
        return len(self.y) if self.on_disk is None else self.on_disk.num_targets

    @property
    def num_train(self) -> int:
        """How many rows are learnt from, those that choose the best epoch counted in."""
        return len(self.train.y) if self.on_disk is None else self.on_disk.num_rows

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest target."""
        if self.on_disk is not None:
            return self.on_disk.bounds
        return float(self.y.min()), float(self.y.max())

    @property
    def notes(self) -> list[str]:
        """What was understood in one of several ways, for the user to check."""
        used = [column for column in self.encoding.used if column.why]
        notes = [f"column {column.name!r}: {column.why}" for column in used]
        notes += [
            f"column {name!r} tells the target all by itself: if it is not known before the "
            f"target is, leave it out with --drop {name!r}"
            for name in self.giveaways
        ]
        return [*notes, *([self.target.note] if self.target.note else [])]


def prepare(
    table: Table,
    target: str,
    *,
    held_out: float = 0.2,
    max_rows: int | None = None,
    seed: int = 0,
    task: str | None = None,
    drop: Sequence[str] = (),
    category: Sequence[str] = (),
    keep: Sequence[str] = (),
    stream: bool | None = None,
    progress: bool = False,
) -> PreparedTable:
    """Understand, split and encode a table, in two passes over it; see `TableModel.fit`.

    A table of more than `STREAM_CELLS` cells (or any, by `stream=True`) is read in three passes and
    encoded onto the disk: `unbounded.tables.streaming`.

    Raises:
        TableError: if nothing can be learnt from the table.
        ValueError: if an argument is out of its range.
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out must be in [0, 1), got {held_out}")
    if max_rows is not None and max_rows < MIN_ROWS:
        raise ValueError(f"max_rows must be at least {MIN_ROWS}, got {max_rows}")
    if task not in (None, *TASKS):
        raise ValueError(f"task must be one of {', '.join(TASKS)}, or None, got {task!r}")
    table.check_names([target])
    lists = {"drop": drop, "category": category, "keep": keep}
    for name, given in lists.items():
        lists[name] = [given] if isinstance(given, str) else given
        table.check_names(lists[name], f"{name}: ")
    for name, given in lists.items():
        if target in given:
            raise TableError(f"{name} names the target, {target!r}")
        both = [one for one in given if name != "drop" and one in lists["drop"]]
        if both:
            raise TableError(f"{name} and drop both name {both[0]!r}: choose one of them")
    names = [name for name in table.names if name not in lists["drop"]]
    with progress_bar(progress, "reading", table.num_rows) as count:
        profiles = profile(table, names, count)
    target_profile = profiles.pop(target)
    found = infer_target(target_profile, task)
    if target_profile.present < MIN_ROWS:
        raise TableError(
            f"{table.label} has {count_of(target_profile.present, 'row')} with a target, "
            f"at least {MIN_ROWS} are needed"
        )
    if not profiles:
        raise TableError(f"{table.label} has no column besides the target")
    columns = [
        p.column(category=name in lists["category"], keep=name in lists["keep"])
        for name, p in profiles.items()
    ]
    if stream or (stream is None and target_profile.rows * len(names) > STREAM_CELLS):
        from unbounded.tables.streaming import Split, prepare_on_disk

        rows = Split.of(target_profile.present, held_out, max_rows, seed)
        bounds = (target_profile.low, target_profile.high)
        return prepare_on_disk(table, found, columns, rows, bounds, progress)
    with progress_bar(progress, "encoding", target_profile.rows) as count:
        store = Store.of(table, columns, found, count)
    train, test = _split(store.y, found, held_out, max_rows, seed)
    if len(train) <= max(len(found.classes), 1):
        what = f" of {count_of(len(found.classes), 'class')}" if found.is_classes else ""
        raise TableError(
            f"{count_of(len(train), 'row')} to learn from{what} are too few: hold out fewer "
            "(--held-out), or use more (--max-rows)"
        )
    missing = [text for text in table.missing if text not in MISSING]
    encoding, x = Encoding.fit(store, columns, train, missing, seed)
    x_test = encoding.transform(lambda column: store.values(column, test))
    y = store.y
    parts = Examples(x, y[train]), Examples(x_test, y[test])
    return PreparedTable(
        table, found, encoding, y, *parts, giveaways(store, encoding, train, found)
    )


def _split(
    y: Floats, target: Target, share: float, max_rows: int | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training and held-out rows at random; every class keeps a row to learn from."""
    order = np.random.default_rng(seed).permutation(len(y))
    if target.is_classes:
        # In each class the same share: rows are ranked within their class, then cut by rank.
        codes = y[order].astype(np.int64)
        sizes = np.bincount(codes, minlength=len(target.classes))
        by_class = np.argsort(codes, kind="stable")
        rank = np.empty(len(order))
        starts = np.cumsum(sizes) - sizes
        rank[by_class] = (np.arange(len(order)) - np.repeat(starts, sizes)) / np.repeat(
            np.maximum(sizes, 1), sizes
        )
        order = order[np.argsort(rank, kind="stable")]
    order = order[: max_rows or len(order)]
    cut = len(order) - round(share * len(order))
    # The first rows have one of every class.
    return np.sort(order[:cut]), np.sort(order[cut:])
