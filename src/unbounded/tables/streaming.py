"""Tables larger than memory: encoded onto the disk once, learnt from by windows.

The first pass over the table (`profile`) sees all rows and finds out what the columns are. The
second takes a sample of the training rows, by which scales, categories and means of the target are
learnt. The third encodes all training rows into two temporary files of numbers, 4 bytes each.
Held-out rows and those that choose the best epoch stay in memory: there is a bound for both.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.columns import Column
from unbounded.tables.encoding import Encoding, Matrix, Store
from unbounded.tables.giveaways import giveaways
from unbounded.tables.prepare import Examples, PreparedTable
from unbounded.tables.reading import MISSING, Table, TableError
from unbounded.tables.target import Target
from unbounded.tables.text import progress_bar
from unbounded.tables.values import Floats

SAMPLE_ROWS = 200_000
"""Training rows by which the encoding is learnt, at most."""
HELD_OUT_ROWS = 100_000
"""Rows to score on, at most."""
VALIDATION_ROWS, VALIDATION_SHARE = 50_000, 0.15
"""Rows that choose the best epoch: this share of the training rows, and at most so many."""
_BLOCK = 1 << 16  # rows that are dealt at a time

_SAMPLE, _TRAIN, _VALIDATION, _HELD_OUT, _UNUSED = range(5)


@dataclass(frozen=True)
class Split:
    """What each row of a table is for, told row by row without holding all of them.

    In every 65,536 rows each purpose has its share, to a row, and a seeded shuffle deals them.

    Attributes:
        counts: rows of the sample, other training rows, validation, held out, not used.
        seed: of the shuffle.
    """

    counts: tuple[int, int, int, int, int]
    seed: int

    @classmethod
    def of(cls, rows: int, held_out: float, max_rows: int | None, seed: int) -> "Split":
        """A split of so many rows; see `TableModel.fit`."""
        used = min(rows, max_rows or rows)
        held = min(round(held_out * used), HELD_OUT_ROWS)
        validation = min(round(VALIDATION_SHARE * (used - held)), VALIDATION_ROWS)
        train = used - held - validation
        sample = min(train, SAMPLE_ROWS)
        return cls((sample, train - sample, validation, held, rows - used), seed)

    @property
    def num_train(self) -> int:
        """Rows that the weights are learnt from."""
        return self.counts[_SAMPLE] + self.counts[_TRAIN]

    def dealer(self) -> "Dealer":
        """Deals the rows, from the first one on."""
        return Dealer(self)


class Dealer:
    """Says what the next rows are for."""

    def __init__(self, split: Split):
        self.random = np.random.default_rng([split.seed, 1])
        self.ends = np.cumsum(split.counts).tolist()
        self.next_row = 0
        self.left: NDArray[np.int8] = np.zeros(0, np.int8)

    def deal(self, count: int) -> NDArray[np.int8]:
        """The purposes of that many rows."""
        parts = [self.left]
        while sum(map(len, parts)) < count:
            parts.append(self._block())
        dealt = np.concatenate(parts)
        self.left = dealt[count:]
        return dealt[:count]

    def _block(self) -> NDArray[np.int8]:
        total = self.ends[-1]
        start, stop = self.next_row, min(self.next_row + _BLOCK, total)
        if start == stop:
            raise TableError("the table has more rows than before: it has changed, try again")
        bounds = [stop * end // total - start * end // total for end in self.ends]
        self.next_row = stop
        kinds = np.repeat(np.arange(len(bounds), dtype=np.int8), np.diff([0, *bounds]))
        dealt: NDArray[np.int8] = self.random.permutation(kinds)
        return dealt


class SpooledRows:
    """Encoded rows in two temporary files, which go when this object does.

    Attributes:
        x, y: paths of .npy files.
        validation: rows that choose the best epoch.
        num_targets: rows of the table that have a target.
        bounds: the smallest and the largest target.
        num_learnt: rows in the files.
    """

    def __init__(self, split: Split, features: int, bounds: tuple[float, float]):
        self.num_targets, self.num_learnt = sum(split.counts), split.num_train
        self.bounds = bounds
        self.validation = Examples(np.zeros((0, features), np.float32), np.zeros(0))
        self.bytes = self.num_learnt * (4 * features + 8)
        place = tempfile.gettempdir()
        free = shutil.disk_usage(place).free
        if free < 1.05 * self.bytes:
            raise TableError(
                f"training from disk needs {self.bytes / 2**30:.3g} GiB in {place}, which has "
                f"{free / 2**30:.3g} GiB free: set TMPDIR to a larger place, or use fewer rows "
                "(--max-rows)"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="unbounded-", dir=place))
        owner = os.getpid()  # a process that was forked leaves the files alone
        weakref.finalize(self, _remove, self.folder, owner)
        self.x, self.y = self.folder / "x.npy", self.folder / "y.npy"

    @property
    def num_rows(self) -> int:
        """Rows of both purposes: to learn from and to choose by."""
        return self.num_learnt + len(self.validation.y)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class _Writer:
    """Rows appended to a .npy file whose shape is known."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any):
        self.file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (closed by `prepare_on_disk`)
        self.dtype, self.missing = np.dtype(dtype), shape[0]
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(self.file, header)

    def add(self, rows: NDArray[Any]) -> None:
        """The next rows."""
        self.missing -= len(rows)
        self.file.write(np.ascontiguousarray(rows, self.dtype).data)

    def close(self) -> None:
        """An error unless all rows have come."""
        self.file.close()
        if self.missing:
            raise TableError("the table has fewer rows than before: it has changed, try again")


def prepare_on_disk(
    table: Table,
    target: Target,
    columns: Sequence[Column],
    split: Split,
    bounds: tuple[float, float],
    progress: bool = False,
) -> PreparedTable:
    """The second and the third pass over a table that `prepare` has looked at.

    Args:
        table: the rows.
        target: the column to predict.
        columns: what the others are.
        split: what each row that has a target is for.
        bounds: the smallest and the largest target.
        progress: draw bars.
    """
    rows = table.num_rows
    store, dealer = Store(columns, target), split.dealer()
    if not store.columns:
        Encoding.fit(store, columns, slice(0), (), split.seed)  # which tells why
    with progress_bar(progress, "sampling", rows) as count:
        for start, frame in table.chunks(store.names, progress=count):
            y, purposes = _purposes(target, frame, start, dealer)
            if (purposes == _SAMPLE).any():
                store.add(start, frame, y, purposes == _SAMPLE)
    missing = [text for text in table.missing if text not in MISSING]
    chosen = np.arange(len(store.y))
    encoding, x = Encoding.fit(store, columns, chosen, missing, split.seed)
    found = giveaways(store, encoding, chosen, target)
    sample = Examples(x, store.y)
    del store
    spool, held_out = _encode(table, target, encoding, sample.x, split, bounds, progress)
    return PreparedTable(table, target, encoding, sample.y, sample, held_out, found, spool)


def _encode(
    table: Table,
    target: Target,
    encoding: Encoding,
    sample: Matrix,
    split: Split,
    bounds: tuple[float, float],
    progress: bool,
) -> tuple[SpooledRows, Examples]:
    """Encode all rows, those of the sample as the encoding's fit gave them: `sample`."""
    features, dealer = len(encoding.feature_names), split.dealer()
    spool = SpooledRows(split, features, bounds)
    kept: dict[int, list[tuple[Matrix, Floats]]] = {_VALIDATION: [], _HELD_OUT: []}
    files = (
        _Writer(spool.x, (split.num_train, features), np.float32),
        _Writer(spool.y, (split.num_train,), np.float64),
    )
    names = [column.name for column in encoding.used] + [target.name]
    done = 0
    try:
        with progress_bar(progress, "encoding", table.num_rows) as count:
            for start, frame in table.chunks(names, progress=count):
                y, purposes = _purposes(target, frame, start, dealer)
                x = encoding.transform_frame(frame, start)
                # Means of the target to which a row contributed would give its own target away.
                sampled = purposes == _SAMPLE
                size = int(sampled.sum())
                x[sampled] = sample[done : done + size]
                done += size
                learnt = sampled | (purposes == _TRAIN)
                files[0].add(x[learnt])
                files[1].add(y[learnt])
                for purpose, parts in kept.items():
                    here = purposes == purpose
                    if here.any():
                        parts.append((x[here], y[here]))
    finally:
        for file in files:
            file.file.close()
    for file in files:
        file.close()
    empty = (np.zeros((0, features), np.float32), np.zeros(0))
    joined = {
        purpose: Examples(*(np.concatenate(part) for part in zip(*(parts or [empty]), strict=True)))
        for purpose, parts in kept.items()
    }
    spool.validation = joined[_VALIDATION]
    return spool, joined[_HELD_OUT]


def _purposes(
    target: Target, frame: Any, start: int, dealer: Dealer
) -> tuple[Floats, NDArray[np.int8]]:
    """Targets of a chunk, and what its rows are for; those without a target are for nothing."""
    y = target.read(frame[target.name], start)
    known = ~np.isnan(y)
    purposes = np.full(len(y), _UNUSED, np.int8)
    purposes[known] = dealer.deal(int(known.sum()))
    return y, purposes
