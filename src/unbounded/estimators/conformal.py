"""Intervals that hold what they say, whatever the model is worth: split conformal prediction.

Let s_i = |y_i − μ(x_i)| / σ(x_i) be the scores of n held-out rows, with the mean μ and the standard
deviation σ of the predictive mixture. With the k-th smallest of them, k = ⌈(n + 1)·coverage⌉, the
interval μ(x) ± s_(k) σ(x) holds a further target with at least that probability, if rows are
exchangeable (Vovk et al., 2005; Lei et al., 2018). Here the held-out rows have also chosen epoch
and depth, and fit them better than other rows would. So σ in the scores is that before it was
widened for this reason (`calibrate`): intervals are wider by a factor of exp(1/√(2n)).

Equal rows are one that counts w times, and are held out together or not at all. So scores count by
their weights, with n = (Σw)²/Σw²: a row that is there ten times was drawn as one. A few rows that
make up much of the table (`rows.outweighing`) are always learnt from. A further row is one of them
with a probability a that their weights tell, and then has exactly their score, learnt or not. With
their distribution of scores H and the held-out one L, intervals reach to the smallest s at which
a·H(s) + (1 − a)·L(s)·n/(n + 1) is the coverage. With weights of 1 that is the rule above, which is
exact; else coverage holds up to how well few heavy rows tell of the others.
"""

import math
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from unbounded.schema import FileError, list_of, real

Floats = NDArray[np.float64]

MOST_SCORES = 1000
"""That are kept, evenly chosen: a quantile of more is no sharper than a model file is long."""


def distances(y: Floats, mean: Floats, std: Floats) -> Floats:
    """The scores of rows, `(rows, target)`."""
    found: Floats = np.abs(y - mean) / std
    return found


def kept_scores(
    held: Floats, weights: Floats, heavy: Floats | None = None, counts: Floats | None = None
) -> tuple[Floats, Floats | None]:
    """Sorted scores, `(kept, target)`, and the coverage that each is good for, likewise.

    No coverages where all rows count alike: their number says them.

    Args:
        held: scores of held-out rows, `(rows, target)`.
        weights: how often each of them counts, `(rows,)`.
        heavy: scores of rows that are learnt from because they outweigh others; None without any.
        counts: how often heavy rows count, and last how often all others do, held out or not.
    """
    if heavy is None and (weights == weights[0]).all():
        return _thinned(np.sort(held, axis=0)), None
    rows = weights.sum() ** 2 / (weights @ weights)
    masses = weights / weights.sum() * (rows / (rows + 1))
    if heavy is not None and counts is not None:
        shares = counts / counts.sum()
        held, masses = np.vstack([held, heavy]), np.append(masses * shares[-1], shares[:-1])
    order = np.argsort(held, axis=0, kind="stable")
    found, shares = np.take_along_axis(held, order, 0), np.cumsum(masses[order], axis=0)
    if len(found) > MOST_SCORES:
        steps = np.arange(1, MOST_SCORES + 1) / MOST_SCORES
        # At equal steps of coverage: those that stay stand for the ones below.
        places = [np.searchsorted(one, one[-1] * steps) for one in shares.T]
        chosen = np.minimum(np.stack(places, 1), len(found) - 1)
        found, shares = (np.take_along_axis(part, chosen, 0) for part in (found, shares))
    return found, shares


def _thinned(found: Floats) -> Floats:
    count = len(found)
    if count <= MOST_SCORES:
        return found
    # Those that stay stand for the ones below: intervals get wider by that, never narrower.
    chosen = np.ceil(np.arange(1, MOST_SCORES + 1) * count / MOST_SCORES).astype(int) - 1
    return found[chosen]


def factor(kept: Floats, coverage: float, shares: Floats | None = None) -> Floats:
    """How many standard deviations an interval goes to each side, `(target,)`.

    Args:
        kept: scores, `(kept, target)`.
        coverage: that intervals are to have.
        shares: the coverage that each score is good for, if rows do not count alike.

    Raises:
        ValueError: if so few rows cannot promise that coverage.
    """
    if not (isinstance(coverage, Real) and 0 < coverage < 1):
        raise ValueError(f"coverage must be strictly between 0 and 1, got {coverage!r}")
    count, weighted = len(kept), ""
    place, most = math.ceil((count + 1) * coverage), count / (count + 1)
    is_too_much = place > count
    if shares is not None:
        most, weighted = float(shares[-1].min()), " by their weights"
        is_too_much = coverage > most
    if is_too_much:
        raise ValueError(
            f"{count} held-out rows can promise a coverage of at most {most:.3f}{weighted}, "
            f"got {coverage}: hold out more rows (validation_fraction, or an eval_set)"
        )
    if shares is None:
        chosen: Floats = kept[place - 1]
        return chosen
    places = (np.searchsorted(one, coverage) for one in shares.T)
    return np.array([one[place] for one, place in zip(kept.T, places, strict=True)])


def read(described: object, targets: int, where: str, most: float = math.inf) -> Floats | None:
    """Scores or coverages from a file, `(kept, target)`; None where it has none."""
    if described is None:
        return None
    row = list_of(real(0, most), least=targets, most=targets)
    rows = list_of(row, least=1, most=MOST_SCORES)(described, where)
    found = np.array(rows, np.float64)
    if (np.diff(found, axis=0) < 0).any():
        raise FileError(f"the field {where} should be sorted")
    return found
