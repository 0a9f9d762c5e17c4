"""What may follow a first training: one on all rows, or those of further networks."""

import math
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unbounded import parallel
from unbounded.estimators.ensemble import TrainedModels, member_seeds, warn
from unbounded.estimators.pace import Clock, heeds_overfitting, quality
from unbounded.estimators.rows import WeightedRows, is_classes, rows_at_once
from unbounded.estimators.shares import Division, divide_apart
from unbounded.growth import TooDeepError
from unbounded.likelihoods import Gaussian
from unbounded.model import UDN
from unbounded.predictive import combine, predict
from unbounded.training import NonFiniteError, TrainingWarning

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

_LEFT_OUT = (TooDeepError, NonFiniteError, FloatingPointError, MemoryError, torch.OutOfMemoryError)
"""What a further network may fail by: those before it do without it."""
_SHORTEST, _IN_ALL = 0.125, 1.25  # of the epochs of a whole training
_SHORTER = 0.75  # of the epochs up to the best one
_HOPELESS = 1.05  # times the squared error of the first network alone


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


def adds_networks(estimator: "UDNEstimator", clock: Clock) -> bool:
    """Whether a training that ends early, or has its best epoch early, may be followed by others.

    Not where a number of members or rows of one's own are asked for, and not where a further `fit`
    is to go on: it would have to know which rows each of them was judged by.
    """
    return (
        heeds_overfitting(estimator)
        and estimator.n_members == "auto"
        and estimator.ensemble == "deep"
        and quality(estimator.quality).most > estimator._count
        and not (estimator.refit or estimator.warm_start)
        and not clock.is_over
        and parallel.current().size == 1
    )


def with_others(
    estimator: "UDNEstimator",
    first: TrainedModels,
    rows: WeightedRows,
    division: Division,
    seed: int,
    size: int,
    clock: Clock,
) -> list[TrainedModels]:
    """A first training and those that may follow it, which see the same clock.

    Of numbers they are one run, `with_short_ones`; of classes `further_networks` are runs of their
    own, each with other held-out rows.
    """
    ended, others = first.training.stopped, list[TrainedModels]()
    if first.held is None or ended != "patience" or not adds_networks(estimator, clock):
        return [first]
    if is_classes(first.held.y):
        if len(division.held):
            others, ended = further_networks(estimator, first, rows, division, seed, size, clock)
    elif isinstance(first.models[0].likelihood.single, Gaussian):
        first, ended = with_short_ones(estimator, first, seed, size, clock)
    return [first._replace(training=first.training._replace(stopped=ended)), *others]


def with_short_ones(
    estimator: "UDNEstimator", first: TrainedModels, seed: int, size: int, clock: Clock
) -> tuple[TrainedModels, str]:
    """Numbers that ended early: the mean with further networks, trained for up to the best epoch.

    Their rate falls to the end, so a short training does what a long one does not: it comes to rest
    before rows are learnt by heart. They have the depth that was found, and the same rows are held
    out, which judge by squared errors: as many stay as last had a mean better than the first
    network. All together have the epochs of one and a quarter of a training.

    Args:
        estimator: whose arguments are asked.
        first: the network that was trained first.
        seed: of it.
        size: how many targets there are.
        clock: of the whole fit.

    Returns:
        all of them, or the first, as one; and how it ended: as the first did, or "interrupted".
    """
    found, ended = list(first.models), first.training.stopped
    best, taken, epochs = first.training.best_epoch, len(first.training.history), clock.epochs
    length = math.ceil(max(_SHORTER * best, _SHORTEST * epochs))
    assert first.held is not None
    alone, kept = _square(found, first), len(found)
    begun = clock.start
    while len(found) < quality(estimator.quality).most and taken + length <= _IN_ALL * epochs:
        now = time.monotonic()
        if clock.left is not None and clock.left < now - begun:
            break
        begun = now
        own = Clock(clock.left, length)
        rows, own_seed = (first.learnt, first.held), member_seeds(seed, len(found) + 1)[-1]
        run, stopped = _another(estimator, rows, size, own_seed, own, first.models, first, kept)
        if stopped == "interrupted":
            ended = stopped
        if run is None:
            break
        found += run.models
        taken += len(run.training.history)
        together = _square(found, first)
        if together < alone:
            kept = len(found)
        if not together <= _HOPELESS * alone:
            break
    return first._replace(models=found[:kept]), ended


@torch.no_grad()
def _square(models: Sequence[UDN], run: TrainedModels) -> float:
    """The squared error of the mean of models on the rows that a run has held out."""
    assert run.held is not None
    x, y, weights = run.scalings.tensors(run.held, models[0])
    prediction: Any = combine([predict(model, x, rows_at_once(model)) for model in models])
    squares = (y - prediction.mean.to(y)).double().square().sum(1)
    return float(squares.mean() if weights is None else weights.double() @ squares)


def _another(
    estimator: "UDNEstimator",
    rows: tuple[WeightedRows | None, WeightedRows],
    size: int,
    seed: int,
    clock: Clock,
    found: Sequence[UDN],
    like: TrainedModels,
    kept: int,
) -> tuple[TrainedModels | None, str]:
    """A network besides those that are kept, or None and why there is none; how it ended."""
    learnt, held = rows
    assert learnt is not None
    try:
        with warnings.catch_warnings():
            # What would be said is of a network that nobody gets to see.
            warnings.simplefilter("ignore", TrainingWarning)
            run = estimator._run(learnt, held, size, seed, clock, True, found, like=like)
        stopped = run.training.stopped
    except KeyboardInterrupt:
        return None, "interrupted"
    except _LEFT_OUT as error:
        stopped = str(error)
    if stopped in ("epochs", "patience", "time"):
        return run, stopped
    if stopped != "interrupted":
        warn(f"a further network was left out, {kept} of them are kept: {stopped}")
    return None, stopped


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
        run, stopped = _another(estimator, parts, size, own, own_clock, (), first, len(found))
        if stopped == "interrupted":
            ended = stopped
        if run is None:
            break
        last = len(run.training.history)
        taken += last
        found.append(run._replace(learnt=parts[0], held=parts[1], heavy=rows.take(other.heavy)))
    return found[1:], ended
