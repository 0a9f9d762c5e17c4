"""The row "tables": `UDNRegressor` with its defaults on the study's splits.

Nothing is chosen here. The recipe is the preset "tables" as the estimators have it
(`unbounded.training.presets`, docs/tables.md), with a share of each split's training rows held out
to choose epoch, depth, noise and the levels of intervals.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded import metrics
from unbounded.data.uci import UCISet
from unbounded.estimators import UDNRegressor
from unbounded.experiments.uci import scores
from unbounded.experiments.uci.models import TABLES
from unbounded.experiments.uci.recipe import rounding, training_rows

if TYPE_CHECKING:
    from unbounded.experiments.uci.study import UCISettings


def fit(data: UCISet, plan: "UCISettings", split: int, seed: int) -> UDNRegressor:
    """The estimator on the training rows of a split."""
    rows = training_rows(data.masks(plan.kind)[split])
    model = UDNRegressor(random_state=seed, device=plan.device, quality=plan.quality)
    return model.fit(data.x[rows], data.y[rows])


def score(data: UCISet, plan: "UCISettings", split: int, model: UDNRegressor) -> dict[str, Any]:
    """Its scores on the test rows: a row of the results, as the networks of the study have them.

    Intervals are those of `predict_quantiles`; all else is of the mixture over depths, no scale of
    which is less than the rounding of the targets.
    """
    test = data.masks(plan.kind)[split]
    x, y = data.x[test], data.y[test]
    found = scores.Mixture(*model.predict_components(x))
    row = scores.score(found.widened(1.0, rounding(data.y[~test])), y)
    tails = np.array([(1 + sign * level) / 2 for level in scores.LEVELS for sign in (-1, 1)])
    ends = model.predict_quantiles(x, tails.tolist())
    for level, low, high in zip(scores.LEVELS, ends[::2], ends[1::2], strict=True):
        row["coverage"][f"{level:g}"] = metrics.coverage(y, low, high)
        row["width"][f"{level:g}"] = metrics.mean_width(low, high)
    return {
        "model": TABLES,
        "split": int(split),
        **row,
        "depth_mean": model.depth_mean_,
        "network": TABLES,
        "best_epoch": model.best_epoch_,
        "epochs": model.n_iter_,
        "diverged": int(model.stopped_ == "diverged"),
    }
