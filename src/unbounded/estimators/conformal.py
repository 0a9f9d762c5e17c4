"""Intervals that hold what they say, whatever the model is worth: split conformal prediction.

Let s_i = |y_i − μ(x_i)| / σ(x_i) be the scores of n held-out rows, with the mean μ and the standard
deviation σ of the predictive mixture. With the k-th smallest of them, k = ⌈(n + 1)·coverage⌉, the
interval μ(x) ± s_(k) σ(x) holds a further target with at least that probability, if rows are
exchangeable (Vovk et al., 2005; Lei et al., 2018). Here the held-out rows have also chosen epoch
and depth, and fit them better than other rows would. So σ in the scores is that before it was
widened for this reason (`calibrate`): intervals are wider by a factor of exp(1/√(2n)).
"""

import math

import numpy as np
from numpy.typing import NDArray

from unbounded.schema import FileError, list_of, real

Floats = NDArray[np.float64]

MOST_SCORES = 1000
"""That are kept, evenly chosen: a quantile of more is no sharper than a model file is long."""


def scores(y: Floats, mean: Floats, std: Floats) -> Floats:
    """Sorted scores of held-out rows, `(rows, target)` → `(kept, target)`."""
    found = np.sort(np.abs(y - mean) / std, axis=0)
    count = len(found)
    if count <= MOST_SCORES:
        return found
    # Those that stay stand for the ones below: intervals get wider by that, never narrower.
    chosen = np.ceil(np.arange(1, MOST_SCORES + 1) * count / MOST_SCORES).astype(int) - 1
    return found[chosen]


def factor(kept: Floats, coverage: float) -> Floats:
    """How many standard deviations an interval goes to each side, `(target,)`.

    Raises:
        ValueError: if so few rows cannot promise that coverage.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be strictly between 0 and 1, got {coverage}")
    count = len(kept)
    place = math.ceil((count + 1) * coverage)
    if place > count:
        raise ValueError(
            f"{count} held-out rows can promise a coverage of at most {count / (count + 1):.3f}, "
            f"got {coverage}: hold out more rows (validation_fraction, or an eval_set)"
        )
    chosen: Floats = kept[place - 1]
    return chosen


def read(described: object, targets: int, where: str) -> Floats | None:
    """Scores from a file, `(kept, target)`; None where it has none."""
    if described is None:
        return None
    row = list_of(real(0), least=targets, most=targets)
    rows = list_of(row, least=1, most=MOST_SCORES)(described, where)
    found = np.array(rows, np.float64)
    if (np.diff(found, axis=0) < 0).any():
        raise FileError(f"the field {where} should be sorted")
    return found
