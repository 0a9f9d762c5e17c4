"""Rows in files, a group at a time: memory-mapped arrays and Parquet, for `DiskData`."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GROUP_BYTES = 16 << 20
"""Of inputs in a group, where the rows have no groups of their own."""
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 12  # of an array's bytes, for its digest


class Piece(NamedTuple):
    """Some rows, as they are on disk."""

    x: Array  # (rows, …)
    y: Array  # (rows, …)
    weights: Array | None  # (rows,)


class Groups(ABC):
    """Rows in groups that are read one at a time.

    Attributes:
        sizes: rows of each group, none of them 0.
        row_bytes: of the inputs of a row, about.
    """

    sizes: list[int]
    row_bytes: int

    @abstractmethod
    def read(self, group: int) -> Piece:
        """The rows of a group."""

    @abstractmethod
    def label(self, group: int) -> str:
        """What errors call a group."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What tells these rows from others, as plain data, without reading all of them."""

    def targets(self, group: int) -> tuple[Array, Array | None]:
        """Targets and weights of a group."""
        _, y, weights = self.read(group)
        return y, weights


class ArrayGroups(Groups):
    """Arrays in .npy files, folders of such files, or memory maps.

    A file is mapped when some of its rows are read and let go of right away: what was read does
    not count as this process's memory for longer than that.

    Args:
        x: inputs, `(rows, …)`.
        y: targets, `(rows, …)`.
        weights: how often each row counts, `(rows,)`.
        group_rows: rows of a group; by default as many as make `GROUP_BYTES`.
    """

    def __init__(self, x: Any, y: Any, weights: Any = None, group_rows: int | None = None):
        self.x, self.y = _Rows(x, "inputs"), _Rows(y, "targets")
        self.weights = None if weights is None else _Rows(weights, "weights")
        for name, rows in (("targets", self.y), ("weights", self.weights)):
            if rows is not None and len(rows) != len(self.x):
                raise ValueError(f"there are {len(self.x):,} rows of inputs, {len(rows):,} {name}")
        if self.weights is not None and self.weights.shape:
            raise ValueError(f"weights must be one number a row, got rows of {self.weights.shape}")
        self.row_bytes = self.x.row_bytes
        if group_rows is not None and group_rows < 1:
            raise ValueError(f"group_rows must be at least 1, got {group_rows}")
        step = group_rows or max(1, GROUP_BYTES // max(1, self.row_bytes))
        self.bounds = [
            (start, min(start + step, stop))
            for first, stop in self.x.bounds()
            for start in range(first, stop, step)
        ]
        self.sizes = [stop - start for start, stop in self.bounds]

    def read(self, group: int) -> Piece:
        """Copies of these rows."""
        bounds = self.bounds[group]
        weights = None if self.weights is None else self.weights.read(*bounds)
        return Piece(self.x.read(*bounds), self.y.read(*bounds), weights)

    def targets(self, group: int) -> tuple[Array, Array | None]:
        """Without touching the inputs."""
        bounds = self.bounds[group]
        return self.y.read(*bounds), None if self.weights is None else self.weights.read(*bounds)

    def label(self, group: int) -> str:
        """By the rows."""
        start, stop = self.bounds[group]
        return f"{self.x.name}, rows {start:,} to {stop - 1:,}"

    def describe(self) -> dict[str, Any]:
        """Shapes and digests of bytes that are spread evenly over each array."""
        found = {"x": self.x.describe(), "y": self.y.describe(), "groups": len(self.sizes)}
        return found | {"weights": None if self.weights is None else self.weights.describe()}


class _Rows:
    """One array, in one file, several files or a memory map."""

    def __init__(self, source: Any, what: str):
        self.parts: list[Path | Array]
        if isinstance(source, str | Path):
            path = Path(source)
            self.parts = sorted(path.glob("*.npy")) if path.is_dir() else [path]
            self.name = str(path)
            if not self.parts:
                raise ValueError(f"{what}: the folder {path} holds no .npy files")
        else:
            self.parts, self.name = [_path_of(source)], f"the {what}"
        arrays = [self._open(part) for part in self.parts]
        for part, array in zip(self.parts, arrays, strict=True):
            if array.ndim < 1 or array.dtype.kind not in "biuf":
                kind = f"dtype {array.dtype}, shape {array.shape}"
                raise ValueError(f"{what}: {_name(part, self.name)} must be numbers, got {kind}")
            if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
                raise ValueError(
                    f"{what}: rows of {_name(part, self.name)} are {array.dtype} "
                    f"{array.shape[1:]}, those before it {arrays[0].dtype} {arrays[0].shape[1:]}"
                )
        self.sizes = [len(array) for array in arrays]
        self.shape, self.dtype = arrays[0].shape[1:], arrays[0].dtype
        self.row_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return sum(self.sizes)

    def bounds(self) -> list[tuple[int, int]]:
        """First row and end of each part."""
        ends = np.cumsum(self.sizes).tolist()
        return [(end - size, end) for size, end in zip(self.sizes, ends, strict=True) if size]

    def read(self, start: int, stop: int) -> Array:
        """Copies of these rows."""
        found = np.empty((stop - start, *self.shape), self.dtype.newbyteorder("="))
        first = 0
        for part, size in zip(self.parts, self.sizes, strict=True):
            low, high = max(start, first), min(stop, first + size)
            if low < high:
                array = self._open(part)
                if len(array) != size or array.shape[1:] != self.shape:
                    raise ValueError(f"{_name(part, self.name)} has changed since training began")
                found[low - start : high - start] = array[low - first : high - first]
                del array
            first += size
        return found

    def describe(self) -> dict[str, Any]:
        """Shape, dtype and a digest of some of the bytes."""
        digest, total = hashlib.sha256(), len(self)
        each = max(1, _SAMPLE_BYTES // max(1, self.row_bytes))
        for start in np.unique(np.linspace(0, max(0, total - each), _SAMPLES).astype(int)):
            digest.update(self.read(int(start), min(total, int(start) + each)).tobytes())
        shape = [total, *self.shape]
        return {"shape": shape, "dtype": str(self.dtype), "digest": digest.hexdigest()[:32]}

    def _open(self, part: "Path | Array") -> Array:
        if not isinstance(part, Path):
            return part
        try:
            found: Array = np.load(part, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ValueError(f"there is no file {part}") from None
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{part} is no .npy file that can be mapped: {error}") from None
        return found


def _path_of(array: Any) -> "Path | Array":
    """The file of a memory map that is the whole of one, so that it can be mapped anew."""
    if not isinstance(array, np.ndarray):
        raise ValueError(
            "DiskData.arrays takes paths of .npy files, folders of them or NumPy arrays, got "
            f"{type(array).__name__}"
        )
    if isinstance(array, np.memmap) and str(array.filename or "").endswith(".npy"):
        whole = np.load(str(array.filename), mmap_mode="r")
        if whole.shape == array.shape and whole.dtype == array.dtype:
            same = bool((whole[:1] == array[:1]).all() and (whole[-1:] == array[-1:]).all())
            if same:
                return Path(str(array.filename))
    return array


def _name(part: "Path | Array", name: str) -> str:
    return str(part) if isinstance(part, Path) else name


class ParquetGroups(Groups):
    """Columns of numbers in Parquet files with the same columns, by their row groups.

    Args:
        path: a file, or a folder of .parquet files, which follow each other by name.
        target: the column to predict, or several.
        columns: the inputs; all others by default.
        weights: the column that says how often each row counts.
    """

    def __init__(
        self,
        path: str | Path,
        target: str | Sequence[str],
        columns: Sequence[str] | None = None,
        weights: str | None = None,
    ):
        self.files = parquet_files(path)
        self.single = isinstance(target, str)
        self.target = [target] if isinstance(target, str) else list(target)
        self.weight = weights
        self.groups: list[tuple[Path, int]] = []
        self.sizes = []
        self._digest = hashlib.sha256()
        for number, file in enumerate(self.files):
            with _parquet(file) as opened:
                if number == 0:
                    self.columns = self._chosen(opened.schema_arrow.names, columns)
                self._check(file, opened.schema_arrow)
                metadata = opened.metadata
                for group in range(metadata.num_row_groups):
                    found = metadata.row_group(group)
                    if found.num_rows:
                        self.groups.append((file, group))
                        self.sizes.append(found.num_rows)
                    self._digest.update(repr(found.to_dict()).encode())
        if not self.sizes:
            raise ValueError(f"{path} has no rows")
        self.row_bytes = 4 * len(self.columns)

    def read(self, group: int) -> Piece:
        """Inputs in single precision (double, where a column is), targets as they are."""
        table = self._table(group, [*self.columns, *self.target, *self._weight])
        kinds = {table.column(name).type for name in self.columns}
        dtype = np.float64 if any(str(kind) in _WIDE for kind in kinds) else np.float32
        x = np.empty((table.num_rows, len(self.columns)), dtype)
        for place, name in enumerate(self.columns):
            x[:, place] = self._numbers(table, name, group)
        return Piece(x, *self._targets(table, group))

    def targets(self, group: int) -> tuple[Array, Array | None]:
        """Of their columns alone."""
        table = self._table(group, [*self.target, *self._weight])
        return self._targets(table, group)

    def label(self, group: int) -> str:
        """The file and the number of the group in it."""
        file, number = self.groups[group]
        return f"{file}, row group {number}"

    def describe(self) -> dict[str, Any]:
        """Names, sizes, and a digest of what the files say of their row groups."""
        return {
            "rows": sum(self.sizes),
            "groups": len(self.sizes),
            "columns": self.columns,
            "target": self.target,
            "weights": self.weight,
            "digest": self._digest.hexdigest()[:32],
        }

    @property
    def _weight(self) -> list[str]:
        return [] if self.weight is None else [self.weight]

    def _chosen(self, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
        taken = {*self.target, *self._weight}
        chosen = [name for name in names if name not in taken] if columns is None else list(columns)
        if not chosen:
            raise ValueError(f"{self.files[0]} has no column besides the target")
        twice = [name for name in chosen if name in taken or chosen.count(name) > 1]
        if twice:
            raise ValueError(f"columns: {twice[0]!r} is there twice, or is the target")
        return chosen

    def _check(self, file: Path, schema: Any) -> None:
        from pyarrow import types

        for name in [*self.columns, *self.target, *self._weight]:
            if name not in schema.names:
                known = ", ".join(schema.names[:10])
                raise ValueError(f"{file} has no column {name!r}; its columns are {known}")
            kind = schema.field(name).type
            numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if not numeric:
                raise ValueError(
                    f"the column {name!r} of {file} holds {kind}, not numbers: leave it out by "
                    "columns=, or fit a TableModel, which encodes it"
                )

    def _table(self, group: int, names: list[str]) -> Any:
        file, number = self.groups[group]
        with _parquet(file) as opened:
            if number >= opened.metadata.num_row_groups or (
                opened.metadata.row_group(number).num_rows != self.sizes[group]
            ):
                raise ValueError(f"{file} has changed since training began")
            return opened.read_row_group(number, columns=names, use_threads=False)

    def _numbers(self, table: Any, name: str, group: int) -> Array:
        column = table.column(name)
        if column.null_count:
            raise ValueError(
                f"the column {name!r} has missing values ({self.label(group)}): fill them, or fit "
                "a TableModel, which takes them"
            )
        found: Array = column.to_numpy()
        return found

    def _targets(self, table: Any, group: int) -> tuple[Array, Array | None]:
        columns = [self._numbers(table, name, group) for name in self.target]
        y = columns[0] if self.single else np.stack(columns, 1)
        return y, None if self.weight is None else self._numbers(table, self.weight, group)


_WIDE = ("double", "int64", "uint64", "int32", "uint32")


def parquet_files(path: str | Path) -> list[Path]:
    """The files of a table: one, or all .parquet files in and below a folder, by name."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if not path.is_dir():
        return [path]
    hidden = (".", "_")  # what is not yet whole, by the custom of those who write such folders
    found = sorted(
        file
        for ending in ("*.parquet", "*.pq")
        for file in path.rglob(ending)
        if file.is_file()
        and not any(part.startswith(hidden) for part in file.relative_to(path).parts)
    )
    if not found:
        raise ValueError(f"the folder {path} holds no .parquet files")
    return found


def _parquet(file: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install 'unbounded[tables]'") from None
    try:
        return parquet.ParquetFile(file)
    except (ArrowException, OSError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{file} cannot be read as Parquet: {said}") from None


class Share(Groups):
    """A share of the rows of each group, or all of the others.

    Args:
        of: the groups.
        fraction: of the rows of each group that are held out, chosen by the seed.
        seed: of the choice.
        held_out: whether this is the share, or what is left.
    """

    def __init__(self, of: Groups, fraction: float, seed: int, held_out: bool):
        self.of, self.fraction, self.seed, self.held_out = of, fraction, seed, held_out
        self.row_bytes = of.row_bytes
        counts = [self._count(size) for size in of.sizes]
        self._places = [place for place, count in enumerate(counts) if count]
        self.sizes = [counts[place] for place in self._places]
        if not self.sizes:
            raise ValueError(f"fraction {fraction} leaves no rows on one side")

    def read(self, group: int) -> Piece:
        """Some of the rows of a group, in their order."""
        x, y, weights = self.of.read(self._places[group])
        rows = self._rows(group)
        return Piece(x[rows], y[rows], None if weights is None else weights[rows])

    def targets(self, group: int) -> tuple[Array, Array | None]:
        """Of these rows."""
        y, weights = self.of.targets(self._places[group])
        rows = self._rows(group)
        return y[rows], None if weights is None else weights[rows]

    def label(self, group: int) -> str:
        """That of the whole group."""
        return self.of.label(self._places[group])

    def describe(self) -> dict[str, Any]:
        """The whole and the share."""
        share = {"fraction": self.fraction, "seed": self.seed, "held_out": self.held_out}
        return self.of.describe() | {"share": share}

    def _count(self, size: int) -> int:
        held = round(self.fraction * size)
        return held if self.held_out else size - held

    def _rows(self, group: int) -> Array:
        place = self._places[group]
        size = self.of.sizes[place]
        order = np.random.default_rng([self.seed, place]).permutation(size)
        held = round(self.fraction * size)
        return np.sort(order[:held] if self.held_out else order[held:])
