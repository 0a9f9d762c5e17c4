"""From a table's columns to the matrix that a network takes, and all of that as data."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.schema import FileError, list_of, mapping, record, text
from unbounded.tables import values as read
from unbounded.tables.columns import Column
from unbounded.tables.encoders import (
    ENCODERS,
    CategoryEncoder,
    Coded,
    Encoder,
    PresenceEncoder,
    Response,
    WordsEncoder,
    encoder_from_dict,
)
from unbounded.tables.reading import Table, TableError, pandas
from unbounded.tables.target import Target
from unbounded.tables.text import closest
from unbounded.tables.values import Floats
from unbounded.tables.weighted import deviation_of, mean_of

Matrix = NDArray[np.float32]
Values = Floats | Coded
NO_WORDS = "free text: no word tells of the target"
_TEXTS = ("category", "words")  # kinds whose values are codes of texts


def parse(column: Column, series: Any, start: int = 0) -> Values:
    """A chunk's values as the column's kind reads them: `(rows,)` numbers, or codes of texts.

    Raises:
        TableError: on text in a column of numbers, on infinite values, on what is no date.
    """
    if column.kind in _TEXTS:
        codes, levels = pandas().factorize(read.texts(series))
        return Coded(codes.astype(np.int32), [str(level) for level in levels])
    if column.kind == "boolean":
        values: Floats = read.booleans(series).values  # what is neither is as good as missing
        return values
    if column.kind == "text":
        return np.where(series.isna().to_numpy(), np.nan, 1.0)
    if column.kind == "date":
        values, bad = read.dates(series, column.format or read.ISO)
        expected = f"a date such as those in training was expected ({column.format})"
    else:
        values, bad = read.numbers(series, column.format)
        bad = bad | np.isinf(values)
        such = "" if column.format is None else f", written as {column.format}"
        expected = f"a finite number was expected{such}"
    return read.checked(values, bad, series, start, f"column {column.name!r}", expected)


class Store:
    """The values of all rows of a table that have a target, at 4 to 8 bytes a cell.

    Without a target, of all its rows. Texts are kept once each besides.
    """

    def __init__(self, columns: Sequence[Column], target: Target | None = None):
        self.columns = [column for column in columns if column.is_used]
        self.target = target
        self._kinds = {column.name: column.kind for column in self.columns}
        self._parts: dict[str, list[Any]] = {column.name: [] for column in self.columns}
        self._levels: dict[str, dict[str, int]] = {column.name: {} for column in self.columns}
        self._target_parts: list[Floats] = []

    @classmethod
    def of(
        cls,
        table: Table,
        columns: Sequence[Column],
        target: Target | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> "Store":
        """Read, chunk by chunk."""
        store = cls(columns, target)
        for start, frame in table.chunks(store.names, progress=progress):
            keep: Any = slice(None)
            y = None
            if target is not None:
                y = target.read(frame[target.name], start)
                keep = ~np.isnan(y)
            store.add(start, frame, y, keep)
        return store

    @property
    def names(self) -> list[str]:
        """The columns of the table that are read."""
        names = [column.name for column in self.columns]
        return names if self.target is None else [*names, self.target.name]

    def add(self, start: int, frame: Any, y: Floats | None, keep: Any) -> None:
        """Take in the rows of a chunk that `keep` chooses, with the targets `y` of all of them."""
        if y is not None:
            self._target_parts.append(y[keep])
        for column in self.columns:
            values: Any = parse(column, frame[column.name], start)
            if isinstance(values, Coded):
                codes, known = values.codes[keep], self._levels[column.name]
                # Texts of rows that are not kept are forgotten; −1, missing, stays −1.
                numbers = np.full(len(values.levels) + 1, -1, np.int32)
                for code in np.unique(codes[codes >= 0]):
                    numbers[code] = known.setdefault(values.levels[code], len(known))
                self._parts[column.name].append(numbers[codes])
            else:
                self._parts[column.name].append(values[keep])

    def sort_levels(self) -> None:
        """Number the levels of categories by their names: the order of rows is then forgotten."""
        for name, known in self._levels.items():
            names = sorted(known)
            place = {level: index for index, level in enumerate(names)}
            numbers = np.array([*(place[level] for level in known), -1], np.int32)
            if known:
                self._parts[name] = [numbers[part] for part in self._parts[name]]
            self._levels[name] = place

    @property
    def y(self) -> Floats:
        """The target `(rows,)`: class numbers or numbers."""
        return np.concatenate(self._target_parts) if self._target_parts else np.zeros(0)

    def values(self, column: Column, rows: Any = slice(None)) -> Values:
        """The values of a column, of some rows."""
        parts = self._parts[column.name]
        if len(parts) > 1:
            self._parts[column.name] = parts = [np.concatenate(parts)]
        values: Any = parts[0][rows]
        if self._kinds[column.name] not in _TEXTS:
            numbers: Floats = values
            return numbers
        if column.kind == "text":  # read for its words, of which none tells anything
            return np.where(values < 0, np.nan, 1.0)
        return Coded(values, list(self._levels[column.name]))


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become a matrix; data, and part of a model's file.

    Attributes:
        columns: all columns of the training table but the target.
        encoders: by name, of those that are used.
        missing: texts that stand for a missing value.
    """

    columns: list[Column]
    encoders: dict[str, Encoder]
    missing: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        store: Store,
        columns: Sequence[Column],
        rows: Any,
        missing: Sequence[str],
        seed: int,
        response: Floats | None = None,
        weights: Floats | None = None,
    ) -> tuple["Encoding", Matrix]:
        """Learn from the training rows (indices into the store); also gives these, encoded.

        Args:
            store: the values.
            columns: all of them, also those that are dropped.
            rows: the training rows, as indices into the store.
            missing: texts that stand for a missing value, besides the usual ones.
            seed: of the folds for the means of the target.
            response: what levels have means of at these rows (`standardized_response`); where
                it is not given, the store's target says.
            weights: how often each of these rows counts; None for once.

        Raises:
            TableError: if no column is left to learn from.
        """
        if not store.columns:
            reasons = "; ".join(f"{column.name!r}: {column.why}" for column in columns[:5])
            raise TableError(
                "no column says anything about the target" + (f" ({reasons})" if reasons else "")
            )
        if response is None:
            assert store.target is not None, "a store without a target needs a response"
            response = standardized_response(store.y[rows], len(store.target.classes))
        given = Response(response, seed, weights)
        encoders: dict[str, Encoder] = {}
        parts = []
        found = {column.name: column for column in columns}
        for column in store.columns:
            values = store.values(column, rows)
            encoder = ENCODERS[column.kind].fit(values, given)
            if isinstance(encoder, WordsEncoder) and not encoder.words:
                if not encoder.missing:
                    found[column.name] = replace(column, kind="dropped", why=NO_WORDS)
                    continue
                found[column.name] = replace(column, kind="text")
                values, encoder = store.values(found[column.name], rows), PresenceEncoder()
            encoders[column.name] = encoder
            parts.append(encoder.fit_transform(values, given))
        if not parts:
            raise TableError(f"no column says anything about the target ({NO_WORDS})")
        return cls(list(found.values()), encoders, tuple(missing)), np.concatenate(parts, 1)

    @property
    def used(self) -> list[Column]:
        """The columns that the matrix is made of, in order."""
        return [column for column in self.columns if column.is_used]

    @property
    def feature_names(self) -> list[str]:
        """The names of the matrix's columns."""
        return [name for c in self.used for name in self.encoders[c.name].names(c.name)]

    @property
    def slices(self) -> dict[str, slice]:
        """Which columns of the matrix a column of the table became."""
        widths = [len(self.encoders[column.name].names(column.name)) for column in self.used]
        ends = np.cumsum(widths).tolist()
        return {c.name: slice(e - w, e) for c, w, e in zip(self.used, widths, ends, strict=True)}

    def listing(self) -> list[dict[str, Any]]:
        """What each column is, and what the model sees of it or why it sees nothing."""
        return [
            {
                "name": column.name,
                "kind": column.kind,
                "missing": column.missing,
                "values": column.summary(),
                "used_as": self.encoders[column.name].uses() if column.is_used else None,
                "why": column.why or None,
            }
            for column in self.columns
        ]

    def transform(self, values: Callable[[Column], Values]) -> Matrix:
        """The matrix `(rows, features)` from the values of each used column."""
        parts = []
        for column in self.used:
            encoder, given = self.encoders[column.name], values(column)
            if column.numeric and isinstance(encoder, CategoryEncoder) and isinstance(given, Coded):
                given = encoder.by_number(given)
            parts.append(encoder.transform(given))
        return np.concatenate(parts, 1)

    def transform_frame(self, frame: Any, start: int = 0) -> Matrix:
        """The matrix `(rows, features)` of a chunk whose columns `check_names` has seen."""
        return self.transform(lambda column: parse(column, frame[column.name], start))

    def check_names(self, table: Table, target: str | None = None) -> None:
        """An error if a table lacks columns; their order and extra columns do not matter.

        Args:
            table: whose columns are looked at.
            target: the column to predict, which is no other name of one that is missing.

        Raises:
            TableError: if a column is missing.
        """
        missing = [column.name for column in self.used if column.name not in table.names]
        if not missing:
            return
        known = {target, *(column.name for column in self.columns)}
        extra = [name for name in table.names if name not in known]
        shown = ", ".join(repr(name) for name in missing[:10])
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        hint = f"; {closest(missing[0], extra)}" if len(missing) == 1 and extra else ""
        what = "the column" if len(missing) == 1 else f"{len(missing)} columns"
        raise TableError(f"{table.label} lacks {what} {shown}{more}{hint}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "columns": [asdict(column) for column in self.columns],
            "encoders": {name: encoder.to_dict() for name, encoder in self.encoders.items()},
            "missing": list(self.missing),
        }

    @classmethod
    def from_dict(cls, data: Any, where: str = "encoding") -> "Encoding":
        """What `to_dict` described; a FileError that names the field if it is no such thing."""
        fields = {"columns": list_of(Column.from_dict), "encoders": mapping(encoder_from_dict)}
        found = record({**fields, "missing": list_of(text())})(data, where)
        columns, encoders = found["columns"], found["encoders"]
        if len({column.name for column in columns}) < len(columns):
            raise FileError(f"the field {where}.columns names a column twice")
        if set(encoders) != {column.name for column in columns if column.is_used}:
            raise FileError(f"the field {where}.encoders should be one for each column in use")
        for column in columns:
            if column.is_used and encoders[column.name].kind != column.kind:
                raise FileError(f"the column {column.name!r} has an encoder of another kind")
        return cls(columns, encoders, tuple(found["missing"]))


def standardized_response(
    y: NDArray[Any], num_classes: int = 0, weights: Floats | None = None
) -> Floats:
    """What levels have means of, each with mean 0 and deviation 1: `(rows, means)`.

    Args:
        y: numbers, `(rows,)` or `(rows, target)`, or classes from 0, `(rows,)`.
        num_classes: from 3 classes on there is a mean for each; 0 for numbers.
        weights: how often each row counts, `(rows,)`; None for once.
    """
    if num_classes > 2:
        columns = (y[:, None] == np.arange(num_classes)).astype(np.float64)
    else:
        columns = y.reshape(len(y), -1).astype(np.float64)
    mean, sd = mean_of(columns, weights), deviation_of(columns, weights)
    standardized: Floats = (columns - mean) / np.where(sd > 0, sd, 1.0)
    return standardized
