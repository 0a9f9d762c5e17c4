"""Short trainings by which held-out rows choose how closely a network looks at the columns."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unbounded.estimators.ensemble import TrainedModels, Training
from unbounded.estimators.pace import TRIAL, Clock
from unbounded.estimators.rows import Array, is_classes

_DECIDING = 100  # held-out rows that can tell
# By how much the logarithm of the RMSE must be lower without fine ramps: they gain most late.
_LOWER = 0.02


def undecided(y: Array) -> int:
    """The way that is taken where nobody can tell: thresholds of classes, few ramps of numbers.

    Smooth targets in small tables lose more by fine ramps than others gain (docs/tables.md).
    """
    return -1 if is_classes(y) else 0


def can_decide(ways: Sequence[dict[str, Any]], held: int, clock: Clock) -> bool:
    """Whether so many held-out rows and short trainings can tell which of two ways is better.

    A part of few epochs is none, and few rows would choose by luck.
    """
    return len(ways) > 1 and held >= _DECIDING and clock.epochs >= TRIAL


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
    (plain, margin), (detailed, _) = losses
    return (0 if plain + margin <= detailed else -1), None


def _loss(training: Training) -> tuple[float, float]:
    """The least loss of an epoch, and by how much the plain way must have less.

    Of numbers the logarithm of the RMSE. Of classes, and of numbers whose likelihood has another
    score, the negative log score.
    """
    rows = training.history.rows
    errors = [row["val_rmse"] for row in rows if row.get("val_rmse", math.nan) > 0]
    if errors:
        return math.log(min(errors)), _LOWER
    return -float(np.nanmax([row["val_log_score"] for row in rows])), 0.0
