"""Numbers brought to mean 0 and standard deviation 1, without loss on the way.

Offsets that are huge beside the variation (times in nanoseconds, ids), numbers near the ends of
double precision and constants all come out right: differences are taken before anything is added
up or made smaller, and powers of two, which cost no digit, keep squares in range.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FURTHEST = 1e100
"""Deviations from the mean: a network squares and adds up what it is given, and this has room."""
_TINY = float(np.finfo(np.float64).tiny)


def exponents(values: NDArray[Any]) -> NDArray[np.int64]:
    """The e of each column for which all |values| < 2^e: `(rows, column)` → `(column,)`."""
    found: NDArray[np.int64] = np.frexp(np.abs(values).max(0))[1].astype(np.int64)
    return found


def moments(values: NDArray[Any], weights: NDArray[Any]) -> tuple[Floats, Floats]:
    """Weighted mean and standard deviation of each column, both `(column,)`.

    A column that does not vary has exactly its value as the mean; its deviation is set to its
    size, at least 1, so that another value, met later, counts by how much it differs.
    """
    values = np.asarray(values, np.float64)
    share = weights / weights.max()
    share = share / share.sum()
    size = exponents(values)
    unit = np.ldexp(values, -size)  # exact, within (−1, 1)
    pivot = unit[0]
    reach = exponents(unit - pivot)
    # Twice: the second mean is of small numbers, and takes out what rounding left in the first.
    center = pivot + np.ldexp(share @ np.ldexp(unit - pivot, -reach), reach)
    center = center + np.ldexp(share @ np.ldexp(unit - center, -reach), reach)
    deviation = np.sqrt(share @ np.ldexp(unit - center, -reach) ** 2)
    constant = (unit == pivot).all(0)
    center = np.ldexp(np.where(constant, pivot, center), size)
    scale = np.maximum(np.ldexp(deviation, reach + size), _TINY)
    return center, np.where(constant, np.maximum(np.abs(center), 1.0), scale)


def standardized(values: Any, center: Any, scale: Any, most: float = FURTHEST) -> Floats:
    """(values − center) / scale in double precision, also where the difference would overflow.

    Beyond ±`most` values are cut off; NaN stays NaN.
    """
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        result: Floats = (values - center) / scale
        if not (np.abs(result) <= most).all():
            # A quarter of each has room.
            again = (values / 4 - np.divide(center, 4)) / np.divide(scale, 4)
            result = np.clip(np.where(np.isfinite(result), result, again), -most, most)
    return result
