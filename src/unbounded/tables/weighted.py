"""Counts, means and quantiles of columns whose rows may count more than once.

Weights `(rows,)` say how often each row counts; None is once for each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.values import Floats

Codes = NDArray[np.int32]

_SMOOTHING = 10.0  # rows of the overall mean that are mixed into each level's
_FOLDS = 5


def mean_of(values: Floats, weights: Floats | None) -> Any:
    """The mean over rows, the first axis."""
    return values.mean(0) if weights is None else weights @ values / weights.sum()


def deviation_of(values: Floats, weights: Floats | None) -> Any:
    """The standard deviation over rows, the first axis."""
    if weights is None:
        return values.std(0)
    return np.sqrt(mean_of((values - mean_of(values, weights)) ** 2, weights))


def quantiles(x: Floats, weights: Floats | None, levels: Sequence[float]) -> list[float]:
    """Quantiles of values `(rows,)`, each one of the values."""
    if weights is None:
        found: list[float] = np.quantile(x, levels, method="inverted_cdf").tolist()
        return found
    order = np.argsort(x, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(levels) * reached[-1])
    return [float(value) for value in x[order][places]]


def counts_of(codes: Codes, weights: Floats | None, levels: int) -> NDArray[Any]:
    """How often each level is there, `(levels,)`; −1 is none."""
    there = codes >= 0
    return np.bincount(codes[there], None if weights is None else weights[there], levels)


def smoothed_means(
    codes: Codes, response: Floats, levels: int, weights: Floats | None = None
) -> Floats:
    """(Σ of the level + k · overall mean) / (rows of the level + k): `(levels, means)`."""
    there = codes >= 0
    overall = mean_of(response, weights)
    counts = counts_of(codes, weights, levels).astype(np.float64)
    weighted = response if weights is None else response * weights[:, None]
    sums = np.stack([np.bincount(codes[there], y, levels) for y in weighted[there].T], 1)
    means: Floats = (sums + _SMOOTHING * overall) / (counts + _SMOOTHING)[:, None]
    return means


def out_of_fold(
    codes: Codes,
    levels: Sequence[str],
    response: Floats,
    seed: int,
    weights: Floats | None = None,
) -> Floats:
    """For each training row the means from the other folds: `(rows, means)`.

    Args:
        codes: of the rows' levels, −1 for none.
        levels: their names.
        response: what there are means of, `(rows, means)`.
        seed: of the folds.
        weights: how often each row counts.
    """
    fold = np.random.default_rng(seed).permutation(len(codes)) % _FOLDS
    result = np.empty_like(response)
    for index in range(_FOLDS):
        inside = fold == index
        if not inside.any():
            continue
        rest, counts = response[~inside], None if weights is None else weights[~inside]
        table = smoothed_means(codes[~inside], rest, len(levels), counts)
        table = np.concatenate([table, mean_of(rest, counts)[None]])  # code −1
        result[inside] = table[codes[inside]]
    return result
