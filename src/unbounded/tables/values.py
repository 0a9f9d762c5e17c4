"""A column's values as what they are read as: numbers, texts, yes or no, dates."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.reading import TableError, is_text, pandas
from unbounded.tables.text import shorten

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ISO = "ISO8601"
# Tried in this order; the first that reads every value of a column is kept. Where 3/4/2021
# can be both, the day comes first.
_DAYS = "%d/%m/%Y|%m/%d/%Y|%Y/%m/%d|%d.%m.%Y|%d-%m-%Y|%m-%d-%Y|%d %b %Y|%d %B %Y|%b %d, %Y"
_DAYS += "|%B %d, %Y|%d-%b-%Y"
_TIMES = ("", " %H:%M", " %H:%M:%S")
DATE_FORMATS = (ISO, *(f"{day}{time}" for day in _DAYS.split("|") for time in _TIMES))

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


def numbers(series: Any) -> Read:
    """Numbers as double precision; text that is no number is bad."""
    import pyarrow
    from pyarrow import compute

    pd = pandas()
    kind = native_kind(series)
    if kind == "text":
        texts = pyarrow.array(series, type=pyarrow.string(), from_pandas=True)
        try:
            floats = compute.cast(texts, pyarrow.float64())
            values = floats.to_numpy(zero_copy_only=False).astype(np.float64)
        except pyarrow.ArrowInvalid:  # some are none; slower, and says which
            values = pd.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        # "nan" is a missing value long before this; what is NaN here and there is no number.
        return Read(values, np.isnan(values) & series.notna().to_numpy())
    if kind == "date":
        seconds = dates(series, ISO).values
        return Read(np.full_like(seconds, np.nan), ~np.isnan(seconds))
    values = series.to_numpy(np.float64, na_value=np.nan)
    return Read(values, np.zeros(len(values), np.bool_))


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


def texts(series: Any, numeric: bool = False) -> Any:
    """Texts, missing where there are none.

    Args:
        series: a column of any kind.
        numeric: the texts are numbers, which may be written in several ways: 1, 1.0 and 1e0
            become one text. (Writing out integers with gaps makes 1.0 of 1 in many programs.)
    """
    pd = pandas()
    kind = native_kind(series)
    if kind == "text" and not numeric:
        return series.astype(object)
    if kind == "boolean":
        return series.astype(object).map({True: "True", False: "False"}, na_action="ignore")
    if kind == "date":
        return series.astype(object).map(lambda time: time.isoformat(), na_action="ignore")
    values, bad = numbers(series)
    result = np.array([None if np.isnan(v) else number_text(v) for v in values], dtype=object)
    if bad.any():
        result[bad] = series.to_numpy(object)[bad]
    return pd.Series(result, index=series.index, dtype=object)


def number_text(value: float) -> str:
    """The shortest text of a number; whole numbers without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(float(value))
