"""Short trainings by which held-out rows choose how closely a network looks at the columns."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unbounded.estimators.ensemble import TrainedModels, Training
from unbounded.estimators.pace import TRIAL, Clock
from unbounded.estimators.rows import Array, WeightedRows, is_classes

_CLASSES, _NUMBERS = 100, 300  # held-out rows that can tell
_LOWER = 0.03  # so much fine ramps must gain, in the logarithm of the RMSE: less is luck


def undecided(y: Array) -> int:
    """The way that is taken where nobody can tell: thresholds of classes, few ramps of numbers.

    Smooth targets in small tables lose more by fine ramps than others gain (docs/tables.md).
    """
    return -1 if is_classes(y) else 0


def can_decide(ways: Sequence[dict[str, Any]], held: WeightedRows, clock: Clock) -> bool:
    """Whether held-out rows and short trainings can tell which of two ways is better.

    A part of few epochs is none, and few rows would choose by luck.
    """
    enough = len(held.x) >= (_CLASSES if is_classes(held.y) else _NUMBERS)
    return len(ways) > 1 and enough and clock.epochs >= TRIAL


def decided(
    ways: Sequence[dict[str, Any]], tried: Callable[[dict[str, Any]], TrainedModels]
) -> tuple[int, TrainedModels | None]:
    """Which of two ways to look at the columns does better on held-out rows.

    Args:
        ways: what a network is told of the columns, plainly and in detail.
        tried: a short training by one of them.

    Returns:
        0 for the plain one, -1 for the other; and a trial that was interrupted: it is then all
        there is.
    """
    losses = []
    for choice, way in zip((0, -1), ways, strict=True):
        trial = tried(way)
        if trial.training.stopped == "interrupted" or not trial.training.history.rows:
            return choice, trial
        losses.append(_loss(trial.training))
    (plain, _), (detailed, more) = losses
    return (0 if plain <= detailed + more else -1), None


def _loss(training: Training) -> tuple[float, float]:
    """The least loss of an epoch, and how much less the detailed way must have.

    Of numbers the logarithm of the RMSE. Of classes, and of numbers whose likelihood has another
    score, the negative log score.
    """
    rows = training.history.rows
    errors = [row["val_rmse"] for row in rows if row.get("val_rmse", math.nan) > 0]
    if errors:
        return math.log(min(errors)), _LOWER
    return -float(np.nanmax([row["val_log_score"] for row in rows])), 0.0
