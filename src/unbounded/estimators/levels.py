"""Levels of intervals as held-out rows show them: what a central interval really holds.

A mixture of Gaussians may have the right width on the whole and the wrong shape: of errors with
heavy tails, most are small, and intervals that should hold 90 % hold 94. Let v = |2F(y|x) − 1| be
the probability of the central interval that reaches just to y. If F were right, v would be uniform
on (0, 1); G, the distribution of v over held-out rows, says what the intervals hold. The one that
is to hold p is then that of G⁻¹(p) (Kuleshov et al., 2018, folded: lower and upper ends move alike,
and the median stays).

G is a histogram with the posterior mean of a Dirichlet prior that is worth some rows at the
identity, so that few rows change little. It is kept only if its density foretells the v of rows
that it was not made from at least as well as the identity does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.estimators.rows import equal_rows
from unbounded.schema import FileError, list_of, optional, real

Floats = NDArray[np.float64]

EDGES = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1.0])
"""Of the parts of the histogram: finer where heavy tails show."""
_PRIOR = 50.0  # rows that the identity is worth
_FEWEST = 50  # rows that say anything at all
_FOLDS, _DIVISIONS = 5, 3  # parts, and how often they are drawn


class Levels(NamedTuple):
    """G by its values at `EDGES`."""

    held: list[float]

    def nominal(self, levels: Floats) -> Floats:
        """The levels to ask the model for, to get quantiles at `levels`, both in (0, 1)."""
        central = np.interp(np.abs(2 * levels - 1), self.held, EDGES)
        # As far from the ends as the level was, should rounding say otherwise.
        return np.clip(0.5 + np.sign(levels - 0.5) * central / 2, 1e-12, 1 - 1e-12)

    def actual(self, levels: Floats) -> Floats:
        """The inverse: P(Y ≤ y) for y at these levels of the model."""
        central = np.interp(np.abs(2 * levels - 1), EDGES, self.held)
        found: Floats = 0.5 + np.sign(levels - 0.5) * central / 2
        return found


def find_levels(cdf: Floats, weights: Floats, seed: int = 0) -> Levels | None:
    """G from F(y_i|x_i) of held-out rows; None where the identity does as well.

    Args:
        cdf: F(y_i|x_i), `(rows,)`.
        weights: how often each row counts, `(rows,)`.
        seed: of the parts of the rows.
    """
    total = weights.sum()
    # A few rows that outweigh all others say no more than a few rows do.
    rows = min(equal_rows(weights), total, len(cdf))
    if rows < _FEWEST:
        return None
    counts = weights * (rows / total)
    place = np.clip(np.searchsorted(EDGES, np.abs(2 * cdf - 1), side="right") - 1, 0, _LAST)
    gain = 0.0
    for division in range(_DIVISIONS):
        part = np.random.default_rng(seed + division).permutation(len(cdf)) % _FOLDS
        for out in range(_FOLDS):
            inside = part == out
            density = _masses(place[~inside], counts[~inside]) / np.diff(EDGES)
            gain += float(counts[inside] @ np.log(density)[place[inside]])
    if not gain > 0:
        return None
    held = np.concatenate([[0.0], np.cumsum(_masses(place, counts))[:-1], [1.0]])
    return Levels(held.tolist())


def read(described: object, targets: int, where: str) -> list[Levels | None]:
    """The levels of each target from a file; none where it has none."""
    if described is None:
        return [None] * targets
    row = optional(list_of(real(0), least=len(EDGES), most=len(EDGES)))
    rows = list_of(row, least=targets, most=targets)(described, where)
    for held in rows:
        if held is not None and (held[0] != 0 or held[-1] != 1 or (np.diff(held) <= 0).any()):
            raise FileError(f"the field {where} should rise from 0 to 1")
    return [None if held is None else Levels(held) for held in rows]


_LAST = len(EDGES) - 2


def _masses(place: NDArray[np.intp], counts: Floats) -> Floats:
    """The share of each part of the histogram, `(part,)`: none is 0."""
    found = np.bincount(place, counts, len(EDGES) - 1) + _PRIOR * np.diff(EDGES)
    masses: Floats = found / found.sum()
    return masses
