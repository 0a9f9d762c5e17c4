"""Targets that nothing can be learnt from, told in words of the user's table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.estimators.given import TIMES
from unbounded.tables.text import is_broken, shorten

# Classes that hardly repeat are free text; of fewer than this many nobody can tell.
_TEXTS_FROM = 20


def target_name(y: Any) -> str:
    """What errors call the targets: by the name that a frame or series gives them."""
    names = [getattr(y, "name", None)]
    if hasattr(y, "columns"):
        names = list(y.columns)[:1]
    return f"the target {names[0]!r}" if names and names[0] else "the target y"


def check_targets(y: Any) -> None:
    """A ValueError if targets are dates or lengths of time, of several types, or missing."""
    if np.ma.is_masked(y):
        row = int(np.argwhere(np.ma.getmaskarray(y))[0][0]) + 1
        raise ValueError(f"the target y has no value in row {row} (masked): leave out such rows")
    values = _flat(y)
    texts = values.tolist() if values.dtype.kind in "OUT" else []
    odd = next((v for v in texts if isinstance(v, str) and is_broken(v)), None)
    if odd is not None:  # files of models hold labels
        raise ValueError(f"{target_name(y)} holds the text {odd!a}, no valid Unicode")
    if values.dtype.kind == "c":
        raise ValueError(f"{target_name(y)} holds complex numbers: Complex data not supported")
    first: Any = next((v for v in values.tolist() if isinstance(v, TIMES)), None)
    if first is None and values.dtype.kind in "mM":
        first = values[0] if values.size else values.dtype
    if first is not None:
        raise ValueError(
            f"{target_name(y)} holds dates or times, the first {shorten(first)!r}: give numbers, "
            "such as days since a day of your choice, or classes"
        )
    gaps: Any = np.flatnonzero(np.isnan(values)) if values.dtype.kind == "f" else []
    if values.dtype.kind == "O":
        gaps = [place for place, value in enumerate(values.tolist()) if _is_gap(value)]
    if len(gaps):
        told = f"{target_name(y)} has no value in row {_row(y, gaps[0])}"
        raise ValueError(f"{told} (NaN): leave out the rows without one")
    infinite: Any = np.flatnonzero(np.isinf(values)) if values.dtype.kind == "f" else []
    if len(infinite):
        row, value = _row(y, infinite[0]), values[infinite[0]]
        raise ValueError(f"{target_name(y)} holds {value} in row {row}: it must be finite")
    if values.dtype.kind == "O":
        kinds = dict.fromkeys(_kind(value) for value in values.tolist())
        if "str" in kinds and len(kinds) > 1:
            found = ", ".join(list(kinds)[:4])
            raise ValueError(
                f"{target_name(y)} holds values of several types ({found}): make them one type"
            )


def is_indicator(y: Any) -> bool:
    """Whether targets have several columns: one for each label that a row may have."""
    found = _values(y)
    return found.ndim == 2 and found.shape[1] > 1


def check_indicator(labels: NDArray[Any], y: Any) -> NDArray[np.int64]:
    """Labels `(rows, label)` as 0 and 1, or a ValueError if they are something else.

    Args:
        labels: as an array of one type.
        y: as they were given.
    """
    odd = ~np.isin(labels, (0, 1))
    if odd.any():
        row, column = np.argwhere(odd)[0]
        names = list(getattr(y, "columns", range(labels.shape[1])))
        raise ValueError(
            f"y has {labels.shape[1]} columns, so that each is a label that is 0 or 1: column "
            f"{names[column]!r} holds {shorten(labels[row, column])!r} in row {row + 1}"
        )
    return labels.astype(np.int64)


def unmasked(y: Any) -> Any:
    """A series of pandas' nullable types, without gaps, as one of NumPy's: classes keep theirs."""
    plain = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    return y if plain is None or not hasattr(y, "to_numpy") else y.to_numpy(dtype=plain)


def check_numbers(y: Any) -> None:
    """A ValueError if a target to be predicted as a number is text."""
    values = _flat(y)
    if values.dtype.kind not in "OUS":
        return
    for place, value in enumerate(values.tolist()):
        try:
            float(value)
        except OverflowError:
            told = f"{target_name(y)} holds a number in row {place + 1} that is too large"
            raise ValueError(told) from None
        except (TypeError, ValueError):
            if isinstance(value, str | bytes):
                raise ValueError(
                    f"{target_name(y)} holds {shorten(value)!r} in row {place + 1}: a regressor "
                    "needs numbers, UDNClassifier learns classes"
                ) from None


def check_repeated(labels: NDArray[Any], name: str) -> None:
    """A ValueError if classes hardly repeat, so that nothing could be learnt of them."""
    rows, count = len(labels), len(set(labels.tolist()))
    if labels.dtype.kind in "OUS" and count >= _TEXTS_FROM and 2 * count > rows:
        raise ValueError(
            f"{name} holds {count} different texts in {rows} rows: free text cannot be predicted, "
            "classes must repeat"
        )
    if count >= rows > 2:
        raise ValueError(
            f"{name} holds {count} classes in {rows} rows: classes must repeat; UDNRegressor "
            "predicts numbers"
        )


def _is_gap(value: Any) -> bool:
    """Whether a value is none: Python's, NumPy's or that of pandas."""
    odd = isinstance(value, float) and value != value
    return value is None or odd or type(value).__name__ == "NAType"


def _kind(value: Any) -> str:
    """The name of a value's type; NumPy's texts are texts."""
    return "str" if isinstance(value, str) else type(value).__name__


def _row(y: Any, place: int) -> int:
    """The number, from 1, of the row that a value is in, by its place among all."""
    values = _values(y)
    return int(place // (values.size // len(values)) + 1)


def _flat(y: Any) -> NDArray[Any]:
    """The values, one after the other."""
    return _values(y).reshape(-1)


def _values(y: Any) -> NDArray[Any]:
    """The values as an array; an empty one where that is not possible."""
    if y is None:
        return np.zeros(0)
    try:
        found = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
        # NumPy makes texts of all that stands beside one, gaps included.
        mixed = isinstance(y, list | tuple) and found.dtype.kind == "U"
        return np.asarray(y, dtype=object) if mixed else found
    except (TypeError, ValueError, RuntimeError):  # of other places or shapes: told elsewhere
        return np.zeros(0)
