"""What may follow a first training: one on all rows, or those of further networks."""

import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from unbounded import parallel
from unbounded.estimators.ensemble import TrainedModels, member_seeds, warn
from unbounded.estimators.pace import Clock, heeds_overfitting, quality
from unbounded.estimators.rows import Array, WeightedRows, is_classes
from unbounded.estimators.shares import Division, divide_apart
from unbounded.growth import TooDeepError
from unbounded.training import NonFiniteError, TrainingWarning

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

_LEFT_OUT = (TooDeepError, NonFiniteError, FloatingPointError, MemoryError, torch.OutOfMemoryError)
"""What a further network may fail by: those before it do without it."""


def on_all_rows(
    estimator: "UDNEstimator",
    first: TrainedModels,
    rows: WeightedRows,
    seed: int,
    size: int,
    clock: Clock,
) -> tuple[TrainedModels | None, str]:
    """Train anew on all rows, up to the epoch that held-out rows have chosen.

    Returns:
        what was trained, and how that ended; None unless by its "epochs": of half a training and
        what the held-out rows chose, the latter is better.
    """
    training = first.training
    try:
        further = Clock(clock.left, training.best_epoch)
        again = estimator._run(rows, None, size, seed, further, True, first.models)
    except KeyboardInterrupt:
        return None, "interrupted"
    except TooDeepError as error:
        warn(f"training on all rows lacked memory, that before it is kept: {error}")
        return None, "memory"
    except NonFiniteError as error:
        warn(f"training on all rows diverged, that before it is kept: {error}")
        return None, "diverged"
    ended = again.training.stopped
    return (again if ended == "epochs" else None), ended


def adds_networks(estimator: "UDNEstimator", y: Array, clock: Clock) -> bool:
    """Whether a training of targets y that ends early may be followed by further ones.

    Not where a number of members or rows of one's own are asked for, and not where a further `fit`
    is to go on: it would have to know which rows each of them was judged by.
    """
    return (
        heeds_overfitting(estimator, is_classes(y))
        and estimator.n_members == "auto"
        and estimator.ensemble == "deep"
        and quality(estimator.quality).most > estimator._count
        and not (estimator.refit or estimator.warm_start)
        and not clock.is_over
        and parallel.current().size == 1
    )


def further_networks(
    estimator: "UDNEstimator",
    first: TrainedModels,
    rows: WeightedRows,
    division: Division,
    seed: int,
    size: int,
    clock: Clock,
) -> tuple[list[TrainedModels], str]:
    """Train further networks in the epochs that the first one has left, up to four in all.

    Rows that were learnt by heart early are few, or full of noise. There the mean of several
    networks is better than one, the more so as each learns from rows that others are judged by:
    together they have seen all. Who ends early pays for the others: all together have the epochs of
    one whole training. A network begins only if as many are left as the one before has taken, and
    as much of the time if that is limited, and keeps its best epoch where they come to an end.

    Args:
        estimator: whose arguments are asked.
        first: the network that has ended early.
        rows: all of them, merged.
        division: which of them the first has learnt from.
        seed: of the first.
        size: how many classes or labels there are.
        clock: of the whole fit.

    Returns:
        them, without the first; and how it all ended: as the first did, or "interrupted".
    """
    found, been, ended = [first], division.held, first.training.stopped
    most, held = quality(estimator.quality).most, len(division.held)
    taken = last = len(first.training.history)
    epochs, begun = clock.epochs, clock.start
    rng = np.random.RandomState(seed % 2**32)
    while len(found) < most and taken + last <= epochs:
        now = time.monotonic()
        if clock.left is not None and clock.left < now - begun:
            break
        begun = now
        other = divide_apart(rows, held, been, rng)
        if other is None:
            break
        been = np.union1d(been, other.held)
        parts = rows.take(other.learnt), rows.take(other.held)
        own = member_seeds(seed, len(found) + 1)[-1]
        own_clock = Clock(clock.left, epochs, most=epochs - taken)
        try:
            with warnings.catch_warnings():
                # What would be said is of a network that nobody gets to see.
                warnings.simplefilter("ignore", TrainingWarning)
                run = estimator._run(*parts, size, own, own_clock, anneal=True, like=first)
            stopped = run.training.stopped
        except KeyboardInterrupt:
            stopped = "interrupted"
        except _LEFT_OUT as error:
            stopped = str(error)
        if stopped == "interrupted":
            ended = stopped
            break
        if stopped not in ("epochs", "patience", "time"):
            warn(f"a further network was left out, {len(found)} of them are kept: {stopped}")
            break
        last = len(run.training.history)
        taken += last
        found.append(run._replace(learnt=parts[0], held=parts[1], heavy=rows.take(other.heavy)))
    return found[1:], ended
