"""Where the classes of a table change along a column."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from unbounded.estimators.ensemble import TrainedModels
from unbounded.estimators.pace import TRIAL, Clock
from unbounded.estimators.rows import Array, Scaling, WeightedRows

Step = tuple[int, float]
"""A column, and a threshold of its scaled values."""

_DECIDING = 100  # held-out rows that can tell whether thresholds help
_PIECES = 8  # of a column at most
# Nats that a threshold gains on the rows at least, and for each class but one besides: of a
# hundred columns of noise the best gains about that.
_GAIN, _GAIN_BY_CLASS = 5.0, 1.5
_LEAST, _LEAST_SHARE = 10, 0.005  # rows on each side of a threshold
_MOST_ROWS = 10_000  # more hardly move a threshold


def find_thresholds(rows: WeightedRows, scaling: Scaling, columns: Sequence[int]) -> list[Step]:
    """Thresholds of each column alone that tell classes, or labels, apart.

    A tree of one column cuts it where the log-likelihood of the classes on both sides gains most,
    and again, as long as a cut gains more than chance does: 5 nats and 1.5 for each class but one.
    Of a hundred columns that say nothing one or two have a threshold.

    Args:
        rows: to learn from; of many, some at equal distances are looked at.
        scaling: that the network sees them through.
        columns: those to look at.
    """
    if not len(columns):
        return []
    count = len(rows.x)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).astype(int))
    x = scaling.apply(rows.x[chosen])
    y, weights = rows.y[chosen], rows.weights[chosen]
    # Impurity is in bits, a mean over all rows.
    others = len(np.unique(y)) - 1
    least = (_GAIN + _GAIN_BY_CLASS * others) / (math.log(2) * float(weights.sum()))
    options = {"max_leaf_nodes": _PIECES, "min_impurity_decrease": least, "random_state": 0}
    options["min_samples_leaf"] = max(_LEAST, int(_LEAST_SHARE * len(chosen)))
    tree = DecisionTreeClassifier(criterion="entropy", **options)
    found = []
    for column in columns:
        places = _cuts(tree.fit(_single(x[:, [column]]), y, weights))
        found += [(int(column), place) for place in places]
    return found


def can_decide(held: int, clock: Clock) -> bool:
    """Whether so many held-out rows and short trainings can tell if thresholds help.

    A part of few epochs is none, and few rows would choose by luck: networks are shown the
    thresholds then.
    """
    return held >= _DECIDING and clock.epochs >= TRIAL


def decided(
    columns: dict[str, Any], tried: Callable[[dict[str, Any]], TrainedModels]
) -> tuple[dict[str, Any], TrainedModels | None]:
    """What networks are shown: thresholds or not, by which trial has the higher held-out score.

    Args:
        columns: what they are shown with thresholds.
        tried: a short training by what a network is shown.

    Returns:
        That, and a trial that was interrupted: it is then all there is.
    """
    plain, scores = {**columns, "steps": []}, []
    for some in (plain, columns):
        trial = tried(some)
        if trial.training.stopped == "interrupted" or not trial.training.history.rows:
            return some, trial
        scores.append(trial.training.best_log_score)
    return (columns if scores[1] > scores[0] else plain), None


def _single(x: Array) -> Array:
    """In single precision, in which trees see their rows; what is beyond it at its end."""
    end = np.finfo(np.float32).max
    return np.clip(x, -end, end).astype(np.float32)


def _cuts(tree: DecisionTreeClassifier) -> list[float]:
    """The thresholds of a fitted tree, ascending, as numbers in single precision.

    Rounded down: halfway between two neighbours, rounding up would put both on one side.
    """
    places = np.unique(tree.tree_.threshold[tree.tree_.children_left >= 0])
    rounded = places.astype(np.float32)
    down = np.where(rounded > places, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return [float(place) for place in down]
