"""A column's values as what they are read as: numbers, texts, yes or no, dates."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.tables import writings
from unbounded.tables.reading import TableError, arrow_texts, is_text, pandas
from unbounded.tables.text import is_number, shorten

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ISO = "ISO8601"
# Tried in this order; the first that reads every value of a column is kept. Where 3/4/2021
# can be both, the day comes first.
_DAYS = "%d/%m/%Y|%m/%d/%Y|%Y/%m/%d|%d.%m.%Y|%d-%m-%Y|%m-%d-%Y|%d %b %Y|%d %B %Y|%b %d, %Y"
_DAYS += "|%B %d, %Y|%d-%b-%Y"
_TIMES = ("", " %H:%M", " %H:%M:%S")
DATE_FORMATS = (ISO, *(f"{day}{time}" for day in _DAYS.split("|") for time in _TIMES))

_EXACT = 2**53  # below, a double is one whole number only
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")

YES = frozenset({"true", "yes", "t", "y", "on"})
NO = frozenset({"false", "no", "f", "n", "off"})


class Read(NamedTuple):
    """Values `(rows,)`, NaN where there is none, and where a value could not be read."""

    values: Floats
    bad: Bools


def native_kind(series: Any) -> str:
    """What a file says that a column is: "text", "number", "boolean" or "date"."""
    pd = pandas()
    if is_text(series):
        return "text"
    if pd.api.types.is_bool_dtype(series.dtype):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return "date"
    return "number"


def checked(
    values: Floats, bad: Bools, series: Any, start: int, where: str, expected: str
) -> Floats:
    """The values, or a TableError that quotes the first bad one of a chunk from row `start` on."""
    if bad.any():
        at = int(bad.argmax())
        held = f"{where} holds {shorten(series.iloc[at])!r} in row {start + at + 1}"
        raise TableError(f"{held}: {expected}")
    return values


def numbers(series: Any, writing: str | None = None) -> Read:
    """Numbers as double precision; text that is no number, or not in that writing, is bad."""
    import pyarrow
    from pyarrow import compute

    kind = native_kind(series)
    if kind == "text":
        texts = arrow_texts(series)
        if writing is not None:
            return _coded_numbers(texts, lambda text: writings.number(text, writing))
        try:
            floats = compute.cast(texts, pyarrow.float64())
            values = floats.to_numpy(zero_copy_only=False).astype(np.float64)
        except pyarrow.ArrowInvalid:  # some are none; slower, and says which
            return _coded_numbers(texts, lambda text: float(text) if is_number(text) else math.nan)
        # "nan" is a missing value long before this; what is NaN here and there is no number.
        there = texts.is_valid().to_numpy(zero_copy_only=False)
        return Read(values, np.isnan(values) & there)
    if kind == "date":
        seconds = dates(series, ISO).values
        return Read(np.full_like(seconds, np.nan), ~np.isnan(seconds))
    values = series.to_numpy(np.float64, na_value=np.nan)
    return Read(values, np.zeros(len(values), np.bool_))


def _coded_numbers(texts: Any, number: Callable[[str], float]) -> Read:
    """What each text of an Arrow array is read as; NaN is bad where there is a text."""
    coded = texts.dictionary_encode()
    known = [number(value) for value in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(-1).to_numpy()  # the last: missing
    values = np.array([*known, np.nan], np.float64)[codes]
    return Read(values, np.isnan(values) & texts.is_valid().to_numpy(zero_copy_only=False))


def distinct(series: Any) -> list[str]:
    """The different texts of a column of texts."""
    found: list[str] = arrow_texts(series).drop_null().unique().to_pylist()
    return found


def has_points(series: Any) -> bool:
    """Whether texts that are plain numbers have a point or an exponent."""
    from pyarrow import compute

    return bool(compute.any(compute.match_substring_regex(arrow_texts(series), "[.eE]")).as_py())


def booleans(series: Any) -> Read:
    """1 for yes, 0 for no; a value that is neither is bad."""
    kind = native_kind(series)
    if kind == "text":
        lower = series.str.lower()
        values = np.full(len(series), np.nan)
        values[lower.isin(YES | {"1"}).to_numpy()] = 1.0
        values[lower.isin(NO | {"0"}).to_numpy()] = 0.0
        return Read(values, np.isnan(values) & series.notna().to_numpy())
    values, bad = numbers(series)
    odd = ~np.isnan(values) & (values != 0) & (values != 1)
    return Read(np.where(odd, np.nan, values), bad | odd)


def dates(series: Any, format: str) -> Read:
    """Seconds since 1970 in UTC; a value that is no date of this format is bad."""
    pd = pandas()
    kind = native_kind(series)
    seconds, given = np.full(len(series), np.nan), series.notna().to_numpy()
    if kind == "text":
        if format == ISO:  # pandas also takes "today" and "now" for dates
            series = series.where(series.str.match("[0-9+-]").eq(True), None)
        times = pd.to_datetime(series, format=format, errors="coerce", utc=True)
    elif kind == "date":
        times = pd.to_datetime(series, utc=True)
    else:
        return Read(seconds, given)
    there = times.notna().to_numpy()
    ticks = times.to_numpy("datetime64[us]").astype(np.int64)
    seconds[there] = ticks[there] / 1e6
    return Read(seconds, ~there & given)


def both_orders(formats: Sequence[str]) -> str:
    """A note if the format that is taken, the first, could as well have month and day exchanged."""
    first = formats[0] if formats else ISO
    swapped = first.translate(str.maketrans("dm", "md"))
    if swapped == first or swapped not in formats:
        return ""
    return (
        "dates are read as day, month, year, though all fit month, day, year too; "
        "write 2021-04-03 to be sure"
    )


def texts(series: Any) -> Any:
    """Texts as they are written, missing where there are none.

    Values that are no text have one writing each: whole numbers all their digits, other numbers
    the shortest that reads back the same.
    """
    pd = pandas()
    kind = native_kind(series)
    if kind == "text":
        return series.astype(object)
    if kind == "boolean":
        return series.astype(object).map({True: "True", False: "False"}, na_action="ignore")
    if kind == "date":
        return series.astype(object).map(lambda time: time.isoformat(), na_action="ignore")
    if pd.api.types.is_integer_dtype(series.dtype):
        return series.astype(object).map(str, na_action="ignore")
    values = numbers(series).values.tolist()
    result = [None if math.isnan(v) else number_text(v) for v in values]
    return pd.Series(result, index=series.index, dtype=object)


def level_counts(series: Any, kind: str) -> dict[str, int]:
    """How often each value is there, by its text."""
    if kind == "text":  # by Arrow itself: tables may have thousands of columns
        counted = arrow_texts(series).drop_null().value_counts()
        names, counts = (counted.field(place).to_pylist() for place in (0, 1))
    else:
        found = series.value_counts(sort=False)
        names = texts(found.index.to_series().reset_index(drop=True)).tolist()
        counts = found.tolist()
    return dict(zip(names, counts, strict=True))


def number_text(value: float) -> str:
    """The shortest text of a number; whole numbers without a point."""
    whole = value.is_integer() and abs(value) < _EXACT
    return str(int(value)) if whole else repr(float(value))


def is_own_writing(text: str) -> bool:
    """Whether a text is how a number is written, with at most a needless ".0" behind.

    (Writing out whole numbers with gaps makes 1.0 of 1 in many programs.) 007, 1E5, +1 and 1.10
    are not: whoever wrote them may have meant a name.
    """
    if _WHOLE.fullmatch(text.removesuffix(".0")):
        return True
    return is_number(text) and text == number_text(float(text))


def number_of(text: str) -> float | None:
    """The number that a text stands for; None if it is none, or too large for one to be sure."""
    value = float(text) if is_number(text) else math.inf
    return value if abs(value) < _EXACT else None


def are_numbers(levels: Iterable[str]) -> bool:
    """Whether levels are numbers, each in its own writing, and no number is there twice."""
    found = list(levels)
    if not all(map(is_own_writing, found)):
        return False
    known = [number for number in map(number_of, found) if number is not None]
    return len(set(known)) == len(known)


def same_level(text: str, by_number: Mapping[float, str]) -> str:
    """The level that a text of new rows means, by its number; the text itself if there is none.

    So 1.0 finds the level 1 of training, where all levels were numbers (`are_numbers`).
    """
    number = number_of(text)
    return text if number is None else by_number.get(number, text)


def levels_by_number(levels: Iterable[str]) -> dict[float, str]:
    """The levels that are numbers, for `same_level`."""
    return {n: level for level in levels if (n := number_of(level)) is not None}
