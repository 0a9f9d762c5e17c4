"""The column to predict: what task it makes, and its values as classes or numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.schema import FileError, choice, flag, list_of, optional, record, text
from unbounded.tables import values as read
from unbounded.tables.columns import Profile
from unbounded.tables.reading import TableError
from unbounded.tables.text import is_number, shorten
from unbounded.tables.values import Floats
from unbounded.tables.writings import WRITINGS

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
        numeric: the classes are numbers, each in its own writing (`are_numbers`).
        writing: of numbers, where it is not that of programs.
    """

    name: str
    task: str
    classes: list[str] = field(default_factory=list)
    numeric: bool = False
    writing: str | None = None

    @property
    def is_classes(self) -> bool:
        """Whether classes are predicted."""
        return self.task == "classification"

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as an estimator takes them, in the order of `classes`, which is sorted."""
        if self.numeric and _are_whole(self.classes):
            return np.array([int(float(name)) for name in self.classes])
        # NumPy's own texts lose a NUL at their end.
        odd = any("\0" in name for name in self.classes)
        return np.array(self.classes, dtype=object if odd else str)

    @property
    def note(self) -> str:
        """What to know: of one number or word in several writings, or of how numbers are read."""
        if self.writing is not None:
            return f"the target {self.name!r} holds numbers written as {self.writing}"
        seen: dict[float | str, str] = {}
        for name in self.classes:
            number = read.number_of(name)
            key = name.casefold() if number is None else number
            if (other := seen.setdefault(key, name)) != name:
                thing = "word" if number is None else "number"
                return (
                    f"the target {self.name!r} holds {other!r} and {name!r}, which are different "
                    f"classes: write one {thing} in one way"
                )
        return ""

    def read(self, series: Any, start: int = 0) -> Floats:
        """Class numbers from 0, or numbers: `(rows,)`, NaN where there is none.

        Raises:
            TableError: on a class that the model does not know, on text for a number, and on
                infinite values.
        """
        if self.is_classes:
            texts = read.texts(series)
            places = {name: float(index) for index, name in enumerate(self.classes)}
            if self.numeric:
                by_number = read.levels_by_number(self.classes)
                for text in set(texts.dropna()) - set(places):
                    same = read.same_level(text, by_number)
                    places |= {text: places[same]} if same in places else {}
            values = texts.map(places).to_numpy(np.float64, na_value=np.nan)
            bad = np.isnan(values) & texts.notna().to_numpy()
            expected = "the classes are " + ", ".join(repr(c) for c in self.classes[:10])
            expected += " …" if len(self.classes) > 10 else ""
        else:
            values, bad = read.numbers(series, self.writing)
            bad = bad | (np.abs(values) > LARGEST)
            expected = f"a number of at most {LARGEST:g} was expected"
        return read.checked(values, bad, series, start, f"the target {self.name!r}", expected)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, where: str = "target") -> "Target":
        """What `to_dict` described; a FileError that names the field if it is no such thing."""
        target = cls(**_FIELDS(data, where))
        if target.is_classes != (len(target.classes) > 1) or len(target.classes) == 1:
            raise FileError(f"the field {where}.classes does not fit the task {target.task}")
        if target.numeric and not all(is_number(name) for name in target.classes):
            raise FileError(f"the field {where}.numeric is true, the classes are no numbers")
        return target


_FIELDS = record(
    {"name": text(), "task": choice(*TASKS), "classes": list_of(text()), "numeric": flag},
    {"writing": optional(choice(*WRITINGS))},
)


def infer_target(profile: Profile, task: str | None = None) -> Target:
    """What there is to predict in a column: classes or numbers, by `RULE` unless `task` says.

    Raises:
        TableError: if nothing can be learnt from the column, or it does not fit the task.
    """

    def unfit(why: str) -> TableError:
        return TableError(f"the target {profile.name!r} {why}")

    if profile.present == 0:
        raise unfit("has no values: all are missing")
    if profile.infinite is not None and task != "classification":
        row, value = profile.infinite
        raise unfit(f"holds {value} in row {row}: it must be finite")
    if task is None and profile.is_date:
        raise unfit(
            "holds dates: predict a number made of them, such as days since one of them, or say "
            "--task classification"
        )
    if task is None and not profile.is_number:
        profile.check_text()
    counts, low, high = profile.levels, profile.low, profile.high
    if task is None:
        task = "classification" if _looks_like_classes(profile, counts) else "regression"
    if task == "regression":
        if not profile.is_number:
            row, text = profile.text or (1, "a truth value or a date")
            raise unfit(f"holds {shorten(text)!r} in row {row}: regression needs numbers")
        if max(-low, high) > LARGEST:
            beyond = f"numbers beyond {LARGEST:g} are too large to predict"
            raise unfit(f"goes from {low:g} to {high:g}: {beyond}")
        if low == high:
            raise unfit(f"has one value only ({low:g})")
        return Target(profile.name, task, writing=profile.writing)
    many = "more than 20,000" if counts is None else f"{len(counts):,}"
    held = f"holds {many} different values in {profile.present:,} rows"
    if counts is None or len(counts) > MAX_CLASSES:
        advice = "; did you mean --task regression?" if profile.is_number else ""
        raise unfit(f"{held}, at most {MAX_CLASSES} can be classes{advice}")
    if len(counts) < 2:
        name = shorten(next(iter(counts)))
        raise unfit(f"holds one class only ({name!r}), at least two are needed")
    if 2 * len(counts) > profile.present and len(counts) > 2:
        raise unfit(f"{held}: classes must repeat")
    numeric = read.are_numbers(counts)
    key = float if numeric and _are_whole(counts) else str
    return Target(profile.name, task, sorted(counts, key=key), numeric)


def _are_whole(names: Iterable[str]) -> bool:
    """Whether all these texts of numbers are of whole ones that a double holds exactly."""
    values = [float(name) for name in names]
    return all(value.is_integer() and abs(value) < 2**53 for value in values)


def _looks_like_classes(profile: Profile, counts: Counter[str] | None) -> bool:
    if not profile.is_number or (counts is not None and len(counts) <= 2):
        return True
    if counts is None or not profile.whole:
        return False
    return len(counts) <= _WHOLE_CLASSES and _ROWS_A_CLASS * len(counts) <= profile.present
