"""What people give as X: containers that hide gaps and types, opened before anybody reads them."""

import datetime
from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np

from unbounded.tables.reading import pandas

TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
"""Types of dates, times and durations."""
_NUMBERS = "numbers were expected, as in training"


def is_frame(X: Any) -> bool:
    """Whether X is a pandas or polars frame: columns with names and types of their own."""
    # Of the class, where pandas has them: a frame would gather the types of its columns.
    kind = type(X)
    named = hasattr(kind, "columns") or hasattr(X, "columns")
    typed = hasattr(kind, "dtypes") or hasattr(X, "dtypes")
    there = hasattr(kind, "to_numpy")  # a lazy frame has no rows yet
    return named and typed and there and getattr(X, "ndim", 2) == 2


def names_of(X: Any) -> list[str]:
    """The names of the columns; x0, x1, … where they have none."""
    if is_frame(X):
        return [str(name).strip() for name in X.columns]
    return [f"x{place}" for place in range(np.asarray(X).shape[1])]


def opened(X: Any) -> Any:
    """The same rows in a container that says all of them.

    Masked values are missing. Tables of Arrow are frames. Sparse columns of a frame are dense.

    Raises:
        TypeError: if it is a dict.
    """
    if isinstance(X, np.ma.MaskedArray):
        masked: Any = X.astype(np.float64 if X.dtype.kind in "biuf" else object)
        return masked.filled(np.nan) if np.ma.is_masked(X) else X.data
    if isinstance(X, Mapping) and not hasattr(X, "toarray"):  # a sparse matrix may be one
        raise TypeError("X is a dict of columns: give pandas.DataFrame(X)")
    if isinstance(X, np.ndarray) and X.dtype.kind == "T":  # texts of any length
        return X.astype(object)
    # Of the class: a lazy frame would read its file to tell.
    if hasattr(type(X), "schema") and hasattr(type(X), "to_pandas") and not is_frame(X):
        return X.to_pandas()
    kinds = [str(kind) for kind in X.dtypes] if hasattr(type(X), "iloc") and is_frame(X) else []
    if any(kind.startswith("Sparse[") for kind in kinds):
        columns = [X.iloc[:, place] for place in range(len(kinds))]
        dense = [c.sparse.to_dense() if hasattr(c, "sparse") else c for c in columns]
        return pandas().concat(dense, axis=1)
    return X


def has_times(values: Any) -> bool:
    """Whether an array of objects holds dates, times or durations, or gaps of pandas."""
    return any(isinstance(v, TIMES) or _is_gap(v) for v in np.asarray(values, object).flat)


def as_numbers(X: Any) -> Any:
    """X for an estimator that was trained on numbers: gaps of pandas in it are NaN.

    Raises:
        ValueError: that names the column, if one holds dates, lists or the like, which would be
            read as other numbers or as none.
    """
    if not is_frame(X):
        values = np.asarray(X) if isinstance(X, np.ndarray | list | tuple) else np.zeros(0)
        if values.ndim != 2 or values.dtype.kind not in "OMm":
            return X
        columns = [_numbers_of(f"x{place}", column) for place, column in enumerate(values.T)]
        return np.stack(columns, 1) if columns else X
    changed = {}
    for place, (name, kind) in enumerate(zip(names_of(X), X.dtypes, strict=True)):
        if hasattr(kind, "is_temporal"):  # polars
            if kind.is_temporal():
                raise unreadable(name, str(kind), _NUMBERS)
            continue
        found = str(kind)
        if found.startswith(("datetime", "timedelta", "period", "timestamp", "duration", "date")):
            raise unreadable(name, found, _NUMBERS)
        if found == "object":
            values = X.iloc[:, place].to_numpy()
            numbers = _numbers_of(name, values)
            if numbers is not values:
                changed[place] = numbers
    if changed:
        X = X.copy()
        for place, numbers in changed.items():
            X.isetitem(place, numbers)
    return X


def is_plain_number(value: Any) -> bool:
    """Whether it is a number or a truth value."""
    return isinstance(value, Number | np.bool_)


def unreadable(
    name: str, kind: str, expected: str = "numbers, texts, truth values or dates were expected"
) -> ValueError:
    """What to say of a column of a type that is not read there."""
    return ValueError(f"column {name!r} holds values of the type {kind}: {expected}")


def _numbers_of(name: str, values: Any) -> Any:
    """A column `(rows,)` with NaN for gaps of pandas; itself if it has none."""
    if values.dtype.kind in "Mm":
        raise unreadable(name, str(values.dtype), _NUMBERS)
    gaps = np.array([_is_gap(value) for value in values], bool)
    for value in values[~gaps]:
        if not (value is None or isinstance(value, str) or is_plain_number(value)):
            raise unreadable(name, type(value).__name__, _NUMBERS)
    return np.where(gaps, np.nan, values) if gaps.any() else values


def _is_gap(value: Any) -> bool:
    return type(value).__name__ in ("NAType", "NaTType")
