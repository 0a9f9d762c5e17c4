"""Data that do not fit into memory: read a window of row groups at a time, shuffled there."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unbounded.parallel import ALONE, Processes
from unbounded.steps.batches import Batch, OwnRows, as_inputs, as_tensor, rows_of, to_device
from unbounded.steps.disk_files import ArrayGroups, Groups, ParquetGroups, Piece, Share

if TYPE_CHECKING:
    from unbounded.model import UDN

WINDOW_BYTES = 256 << 20
"""Of inputs in a window, unless `window` says how many groups there are in it."""


class DiskData:
    """Rows on disk for `fit`, in place of x and y; also for validation.

    Rows lie in groups: the row groups of Parquet files, or pieces of arrays. In each pass the
    groups are put into a new order; then `window` of them at a time are read, and their rows are
    shuffled. So every row comes once a pass, in an order that the seed decides, and memory holds
    one window. The wider it is, the better the shuffle; rows that are in no order on disk need no
    wide one.

    Of several processes each reads groups of its own, another share every pass, if there are as
    many groups as processes; batches then depend on how many processes there are.

    Args:
        groups: where the rows are; see `arrays` and `parquet`.
        window: groups in memory at a time; by default as many as make `WINDOW_BYTES` of inputs.
        epoch_rows: rows after which an epoch of `fit` ends, about, with its validation and its
            checkpoint; the next one goes on in the same pass. By default an epoch is a pass.

    Example:
        >>> data = DiskData.parquet("visits/", target="price")  # doctest: +SKIP
        >>> train, held_out = data.split(0.1)  # doctest: +SKIP
        >>> ub.fit(model, train, validation=held_out, epochs=3)  # doctest: +SKIP
    """

    def __init__(self, groups: Groups, *, window: int | None = None, epoch_rows: int | None = None):
        for name, value in (("window", window), ("epoch_rows", epoch_rows)):
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self.groups, self.epoch_rows = groups, epoch_rows
        usual = WINDOW_BYTES // max(1, groups.row_bytes * max(groups.sizes, default=1))
        self.window = window or max(1, usual)

    @classmethod
    def arrays(
        cls, x: Any, y: Any, weights: Any = None, *, group_rows: int | None = None, **options: Any
    ) -> "DiskData":
        """Arrays in .npy files.

        Args:
            x: inputs `(rows, …)`: the path of a .npy file, a folder of such files, which follow
                each other by name, or a memory map (`np.load(path, mmap_mode="r")`).
            y: targets, likewise.
            weights: how often each row counts, likewise.
            group_rows: rows that are read at a time; by default as many as make 16 MiB.
            options: `window` and `epoch_rows`.
        """
        return cls(ArrayGroups(x, y, weights, group_rows), **options)

    @classmethod
    def parquet(
        cls,
        path: str | Path,
        target: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        weights: str | None = None,
        **options: Any,
    ) -> "DiskData":
        """Columns of numbers in Parquet; `TableModel` takes other columns too.

        Args:
            path: a file, or a folder of .parquet files with the same columns.
            target: the column to predict, or several.
            columns: the inputs; all others by default.
            weights: the column that says how often each row counts.
            options: `window` and `epoch_rows`.
        """
        return cls(ParquetGroups(path, target, columns, weights), **options)

    def __len__(self) -> int:
        return sum(self.groups.sizes)

    def split(self, fraction: float, seed: int = 0) -> tuple["DiskData", "DiskData"]:
        """Rows to learn from, and a share of each group that is held out."""
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
        options: dict[str, Any] = {"window": self.window, "epoch_rows": self.epoch_rows}
        rest, held = (Share(self.groups, fraction, seed, held_out) for held_out in (False, True))
        return DiskData(rest, **options), DiskData(held, **options)

    def describe(self) -> dict[str, Any]:
        """What tells these data from others, as plain data; for checkpoints."""
        options = {"window": self.window, "epoch_rows": self.epoch_rows}
        return {"disk": type(self.groups).__name__, **self.groups.describe(), **options}

    def bind(
        self,
        model: "UDN",
        batch_size: int,
        generator: torch.Generator | None,
        processes: Processes = ALONE,
        *,
        many: bool = False,
    ) -> "DiskBatches":
        """Batches on the model's device; with `many`, batch_size counts observations."""
        found = DiskBatches(self, model, batch_size, generator, processes)
        if many and found.num_data != found.num_rows:
            found.batch_size = rows_of(batch_size, found.num_rows, found.num_data)
        return found


class DiskBatches:
    """Batches of `DiskData`; shuffled with a generator, in the order of the files without.

    The generator stands where the present pass began until that pass is over: with it and `taken`,
    the number of steps of the pass that are done, a checkpoint knows where to go on.
    """

    def __init__(
        self,
        data: DiskData,
        model: "UDN",
        batch_size: int,
        generator: torch.Generator | None,
        processes: Processes = ALONE,
    ):
        self.data, self.model, self.batch_size = data, model, batch_size
        self.generator = generator
        self.num_rows = self.num_data = len(data)
        if model.likelihood.unit != "rows":
            self.num_data = self._count(trains=generator is not None)
        shared = generator is not None and len(data.groups.sizes) >= processes.size
        self.processes = processes if shared else ALONE
        self.taken = 0
        self._walk: Iterator[Batch] | None = None
        self._targets: tuple[Tensor, Tensor | None] | None = None

    @property
    def steps(self) -> int:
        """Of a pass."""
        return -(-self.num_rows // self.batch_size)

    def __len__(self) -> int:
        rows = self.data.epoch_rows
        if rows is None or self.generator is None:
            return self.steps
        return min(self.steps, -(-rows // self.batch_size))

    @property
    def y(self) -> Tensor:
        """The targets of all rows, on the device; read when they are asked for."""
        return self._all_targets()[0]

    @property
    def weights(self) -> Tensor | None:
        """How often each row counts, likewise."""
        return self._all_targets()[1]

    def head(self, rows: int) -> Batch:
        """The first rows, unshuffled: to try the layers on."""
        x, y, _ = self._read(0)
        return to_device(x[:rows], y[:rows], None, self.model)

    def first_targets(self) -> Tensor:
        """Targets of the first group, and of more while they are all the same."""
        found: list[Tensor] = []
        for group in range(len(self.data.groups.sizes)):
            y, _ = self._checked(group, *self.data.groups.targets(group))
            found.append(y)
            if bool((y != found[0][:1]).any()):
                break
        return torch.cat([found[0], found[-1]])

    @property
    def where(self) -> list[int]:
        """Steps of this pass that are done, and how many processes share it; for a checkpoint."""
        return [self.taken, self.processes.size]

    def go_to(self, where: list[int]) -> None:
        """Go on in the pass at whose beginning the generator stands.

        Another number of processes has other groups each: it begins the pass anew.
        """
        taken, parts = where
        self.taken, self._walk = taken if parts == self.processes.size else 0, None

    def __iter__(self) -> Iterator[Batch]:
        if self.generator is None:
            yield from self._pass(list(range(len(self.data.groups.sizes))), None)
            return
        for _ in range(len(self)):
            if self._walk is None:
                self._walk = self._shuffled()
            yield next(self._walk)

    def _shuffled(self) -> Iterator[Batch]:
        """A pass, from the step that is due."""
        assert self.generator is not None
        drawn = torch.Generator()
        drawn.set_state(self.generator.get_state())
        order = torch.randperm(len(self.data.groups.sizes), generator=drawn).tolist()
        seed = int(torch.randint(1 << 62, (), generator=drawn))
        skipped = self.taken
        for batch in self._pass(order, seed, skipped):
            self.taken += 1
            if self.taken == self.steps:  # before the last one: nobody asks for another
                self.generator.set_state(drawn.get_state())
                self.taken, self._walk = 0, None
            yield batch

    def _pass(self, order: list[int], seed: int | None, skipped: int = 0) -> Iterator[Batch]:
        """All steps but the first `skipped` ones, each with the rows of this process."""
        rank, size = self.processes.rank, self.processes.size
        dealt = deal(order, self.data.groups.sizes, size)
        counts = [sum(self.data.groups.sizes[group] for group in groups) for groups in dealt]
        random = None if seed is None else np.random.default_rng([seed, rank])
        rows = _Window(self, dealt[rank], random)
        rows.skip(self._bound(counts[rank], skipped))
        for step in range(skipped, self.steps):
            each = [self._bound(n, step + 1) - self._bound(n, step) for n in counts]
            found = to_device(*rows.take(each[rank]), self.model)
            if size == 1:
                yield found
            else:
                own = OwnRows(*found)
                own.share = self._share(own.y, each)
                yield own

    def _bound(self, rows: int, step: int) -> int:
        """How many of a process's rows come before a step."""
        return rows * min(step * self.batch_size, self.num_rows) // self.num_rows

    def _share(self, y: Tensor, each: list[int]) -> float:
        """Of this process's rows, or of the observations in them, in those of all.

        Args:
            y: the targets that are here.
            each: rows of each process; where it is 0, one that is of no account is here.
        """
        here = each[self.processes.rank]
        held = self.model.likelihood.total(y)
        if held is None:
            return here / sum(each)
        own = held.double() * min(here, 1)
        total = own.clone()
        self.processes.sum(total)
        return (own / total).item()

    def _count(self, trains: bool) -> int:
        """The observations in all rows, whose targets are read for that, group by group."""
        count = 0
        for group in range(len(self.data.groups.sizes)):
            y, _ = self._checked(group, *self.data.groups.targets(group))
            held = self.model.likelihood.total(y)
            count += y.shape[0] if held is None else int(held)
            if trains:
                try:
                    self.model.likelihood.check_training_targets(y)
                except ValueError as error:
                    raise ValueError(f"{self.data.groups.label(group)}: {error}") from None
        return count

    def _read(self, group: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """A group, checked."""
        piece: Piece = self.data.groups.read(group)
        try:
            x = as_inputs(piece.x, self.model)
        except ValueError as error:
            raise ValueError(f"{self.data.groups.label(group)}: {error}") from None
        return x, *self._checked(group, piece.y, piece.weights)

    def _checked(self, group: int, y: Any, weights: Any) -> tuple[Tensor, Tensor | None]:
        try:
            y = self.model.likelihood.check_targets(as_tensor(y, "targets"))
            weights = None if weights is None else as_tensor(weights, "weights")
            if weights is not None and not bool((torch.isfinite(weights) & (weights >= 0)).all()):
                raise ValueError("weights must be finite and at least 0")
        except ValueError as error:
            raise ValueError(f"{self.data.groups.label(group)}: {error}") from None
        return y, weights

    def _all_targets(self) -> tuple[Tensor, Tensor | None]:
        if self._targets is None:
            groups = range(len(self.data.groups.sizes))
            parts = [self._checked(group, *self.data.groups.targets(group)) for group in groups]
            y = torch.cat([y for y, _ in parts])
            each = [w for _, w in parts if w is not None]
            moved = to_device(y, y, torch.cat(each) if each else None, self.model)
            self._targets = moved.y, moved.weights
        return self._targets


class _Window:
    """The rows of some groups one after another, `window` groups in memory at a time.

    Args:
        batches: where the rows are from.
        groups: their numbers.
        random: shuffles the rows of a window; without it they stay in order.
    """

    def __init__(self, batches: DiskBatches, groups: list[int], random: Any):
        self.batches, self.random = batches, random
        size = batches.data.window
        self.waiting = [groups[start : start + size] for start in range(0, len(groups), size)]
        self.rows: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.order: Any = np.zeros(0, np.int64)  # of the rows in memory that are still to come
        self.last: tuple[Tensor, Tensor, Tensor | None] | None = None

    def skip(self, count: int) -> None:
        """Leave out rows; windows that are wholly left out are not read."""
        while count:
            if not len(self.order):
                self._next(read=False)
            if count < len(self.order) and self.rows is None:
                self._fill()
            passed = min(count, len(self.order))
            self.order, count = self.order[passed:], count - passed
        if not len(self.order):
            self.rows = None

    def take(self, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The next rows; where there are to be none, one that is of no account."""
        if count == 0 and self.last is not None:
            return self.last
        parts: list[list[Any]] = []
        missing = max(count, 1)
        while missing:
            if not len(self.order):
                self._next()
            chosen = torch.from_numpy(self.order[:missing])
            assert self.rows is not None
            parts.append([None if part is None else part[chosen] for part in self.rows])
            missing -= len(chosen)
            if count:
                self.order = self.order[len(chosen) :]
        joined: list[Any] = [
            None if part[0] is None else part[0] if len(part) == 1 else torch.cat(part)
            for part in zip(*parts, strict=True)
        ]
        x, y, weights = joined
        self.last = x[:1], y[:1], None if weights is None else weights[:1]
        return x, y, weights

    def _next(self, read: bool = True) -> None:
        self.rows = None  # before others take its place in memory
        self.group = self.waiting.pop(0)
        count = sum(self.batches.data.groups.sizes[group] for group in self.group)
        self.order = np.arange(count) if self.random is None else self.random.permutation(count)
        if read:
            self._fill()

    def _fill(self) -> None:
        """Read the groups of this window into one piece of memory."""
        sizes = [self.batches.data.groups.sizes[group] for group in self.group]
        found: list[Tensor | None] = []
        start = 0
        for group, size in zip(self.group, sizes, strict=True):
            parts = self.batches._read(group)
            if len(self.group) == 1:
                self.rows = parts
                return
            if not found:
                found = [_room(part, sum(sizes)) for part in parts]
            for whole, part in zip(found, parts, strict=True):
                if whole is not None and part is not None:
                    whole[start : start + size] = part
            start += size
        assert found[0] is not None
        assert found[1] is not None
        self.rows = found[0], found[1], found[2]


def _room(like: Tensor | None, rows: int) -> Tensor | None:
    return None if like is None else like.new_empty(rows, *like.shape[1:])


def deal(order: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    """Groups shared out to so many processes: each next one to whoever has the fewest rows."""
    dealt: list[list[int]] = [[] for _ in range(count)]
    rows = [0] * count
    for group in order:
        poorest = rows.index(min(rows))
        dealt[poorest].append(group)
        rows[poorest] += sizes[group]
    return dealt
