"""The column to predict: what task it makes, and its values as classes or numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.tables import values as read
from unbounded.tables.columns import Profile
from unbounded.tables.reading import TableError
from unbounded.tables.text import shorten
from unbounded.tables.values import Floats

TASKS = ("classification", "regression")
MAX_CLASSES = 200
LARGEST = 1e100
"""The largest number that is predicted: squares of errors must not overflow."""

RULE = (
    "text and yes/no are classes; numbers are classes if they are whole, have at most 20 different "
    "values and each of these stands in 5 rows on average, or if there are just two of them; "
    "other numbers are predicted as numbers"
)
_WHOLE_CLASSES, _ROWS_A_CLASS = 20, 5


@dataclass(frozen=True)
class Target:
    """The column to predict.

    Attributes:
        name: of the column.
        task: "classification" or "regression".
        classes: their names, in order; empty for regression.
        numeric: the names of the classes are numbers.
    """

    name: str
    task: str
    classes: list[str] = field(default_factory=list)
    numeric: bool = False

    @property
    def is_classes(self) -> bool:
        """Whether classes are predicted."""
        return self.task == "classification"

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as an estimator takes them, in the order of `classes`, which is sorted."""
        if self.numeric and _are_whole(self.classes):
            return np.array([int(float(name)) for name in self.classes])
        return np.array(self.classes)

    def read(self, series: Any, start: int = 0) -> Floats:
        """Class numbers from 0, or numbers: `(rows,)`, NaN where there is none.

        Raises:
            TableError: on a class that the model does not know, on text for a number, and on
                infinite values.
        """
        if self.is_classes:
            texts = read.texts(series, self.numeric)
            places = {name: float(index) for index, name in enumerate(self.classes)}
            values = texts.map(places).to_numpy(np.float64, na_value=np.nan)
            bad = np.isnan(values) & texts.notna().to_numpy()
            expected = "the classes are " + ", ".join(repr(c) for c in self.classes[:10])
            expected += " …" if len(self.classes) > 10 else ""
        else:
            values, bad = read.numbers(series)
            bad = bad | (np.abs(values) > LARGEST)
            expected = f"a number of at most {LARGEST:g} was expected"
        if bad.any():
            at = int(bad.argmax())
            raise TableError(
                f"the target {self.name!r} holds {shorten(series.iloc[at])!r} in row "
                f"{start + at + 1}: {expected}"
            )
        return values

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Target":
        """What `to_dict` described.

        Raises:
            KeyError, TypeError, ValueError: if it is not such a description.
        """
        target = cls(str(data["name"]), data["task"], list(data["classes"]), data["numeric"])
        if target.task not in TASKS or (target.is_classes and len(target.classes) < 2):
            raise ValueError(f"no target: {data}")
        return target


def infer_target(profile: Profile, task: str | None = None) -> Target:
    """What there is to predict in a column: classes or numbers, by `RULE` unless `task` says.

    Raises:
        TableError: if nothing can be learnt from the column, or it does not fit the task.
    """
    name = profile.name
    if profile.present == 0:
        raise TableError(f"the target {name!r} has no values: all are missing")
    if profile.infinite is not None and task != "classification":
        row, value = profile.infinite
        raise TableError(f"the target {name!r} holds {value} in row {row}: it must be finite")
    if task is None and not profile.is_number:
        profile.check_text()
    counts = _levels(profile)
    if task is None:
        task = "classification" if _looks_like_classes(profile, counts) else "regression"
    if task == "regression":
        if not profile.is_number:
            row, text = profile.text or (1, "a truth value or a date")
            raise TableError(
                f"the target {name!r} holds {shorten(text)!r} in row {row}: "
                "regression needs numbers"
            )
        if max(-profile.low, profile.high) > LARGEST:
            raise TableError(
                f"the target {name!r} goes from {profile.low:g} to {profile.high:g}: "
                f"numbers beyond {LARGEST:g} are too large to predict"
            )
        if profile.low == profile.high:
            raise TableError(f"the target {name!r} has one value only ({profile.low:g})")
        return Target(name, task)
    if counts is None or len(counts) > MAX_CLASSES:
        many = "more than 20,000" if counts is None else f"{len(counts):,}"
        advice = "; did you mean --task regression?" if profile.is_number else ""
        raise TableError(
            f"the target {name!r} holds {many} different values in {profile.present:,} rows, "
            f"at most {MAX_CLASSES} can be classes{advice}"
        )
    if len(counts) < 2:
        raise TableError(
            f"the target {name!r} holds one class only ({shorten(next(iter(counts)))!r}), "
            "at least two are needed"
        )
    if 2 * len(counts) > profile.present and len(counts) > 2:
        raise TableError(
            f"the target {name!r} holds {len(counts):,} different values in {profile.present:,} "
            "rows: classes must repeat"
        )
    key = float if profile.is_number and _are_whole(counts) else str
    return Target(name, task, sorted(counts, key=key), profile.is_number)


def _are_whole(names: Iterable[str]) -> bool:
    """Whether all these texts of numbers are of whole ones that a double holds exactly."""
    values = [float(name) for name in names]
    return all(value.is_integer() and abs(value) < 2**53 for value in values)


def _levels(profile: Profile) -> Counter[str] | None:
    """How often each class is there; numbers that are written in two ways are one."""
    if profile.levels is None or not profile.is_number:
        return profile.levels
    counts: Counter[str] = Counter()
    for level, count in profile.levels.items():
        counts[read.number_text(float(level))] += count
    return counts


def _looks_like_classes(profile: Profile, counts: Counter[str] | None) -> bool:
    if not profile.is_number:
        return True
    if counts is None or not profile.whole:
        return counts is not None and len(counts) <= 2
    few = len(counts) <= _WHOLE_CLASSES and _ROWS_A_CLASS * len(counts) <= profile.present
    return few or len(counts) == 2
