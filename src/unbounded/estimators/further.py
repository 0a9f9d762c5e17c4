"""Training from where models stand, for `partial_fit`."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils import check_random_state

from unbounded.estimators.auto import choose_batch_size
from unbounded.estimators.building import build, check_arguments, shown, threads
from unbounded.estimators.ensemble import TrainedModels, Training, member_seeds
from unbounded.estimators.rows import Array, WeightedRows, merge
from unbounded.model import UDN
from unbounded.steps.batches import batches
from unbounded.training import History, make_optimizer, preset, step
from unbounded.training.presets import Rates

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

_AFTER_FIT = 0.05  # of the rate
_FULL_STEPS = 100  # at about the full rate, where there was no `fit`
_SLOW_STEPS = 10  # of an optimiser, at first


@dataclass
class Learner:
    """A model, and an optimiser that begins slowly: the first steps of Adam are as long as any."""

    model: UDN
    optimizer: torch.optim.Optimizer
    taken: int = 0  # steps

    @classmethod
    def of(cls, model: UDN, estimator: "UDNEstimator") -> "Learner":
        """At the estimator's rate."""
        lr = Rates().lr if estimator.lr == "auto" else float(estimator.lr)
        return cls(model, make_optimizer(model, lr=lr))

    def at_pace(self, pace: float) -> torch.optim.Optimizer:
        """The optimiser for the next step, all of its rates times `pace`."""
        self.taken += 1
        pace *= min(1.0, self.taken / _SLOW_STEPS)
        for group in self.optimizer.param_groups:
            group["lr"] = pace * group.setdefault("initial_lr", group["lr"])
        return self.optimizer


def _pace(estimator: "UDNEstimator", batch_size: int) -> float:
    """A factor of the rate. No end is known, so it falls with the square root of the steps.

    What `fit` has trained is at rest: the rate had come to nothing, and a full one would undo it.
    """
    if estimator.n_iter_:
        return _AFTER_FIT
    return 1 / math.sqrt(1 + estimator.n_rows_seen_ / (batch_size * _FULL_STEPS))


def train_further(estimator: "UDNEstimator", x: Any, y: Array, weights: Array, size: int) -> None:
    """One pass over new rows from where the models stand, for `partial_fit`."""
    rows = WeightedRows(x, y, weights)
    first = not estimator.__sklearn_is_fitted__()
    if first:
        check_arguments(estimator)
        rng = check_random_state(estimator.random_state)
        rows = estimator._encoded(rows, size, rng)
    rows = merge(*rows)
    if first:
        scalings = estimator._scalings(rows)
        columns = shown(estimator, rows, scalings.inputs)
        seeds = member_seeds(int(rng.randint(2**31 - 1)), estimator._count)
        models = [build(estimator, rows.x, size, one, columns, False) for one in seeds]
        none = Training(History(), 0, "partial_fit")
        estimator._keep(TrainedModels(models, scalings, none), 0)
        estimator.refit_history_ = None
    known = estimator._optimizers or []
    if [one.model for one in known] != estimator.members_:  # the very same models
        known = [Learner.of(model, estimator) for model in estimator.members_]
    estimator._optimizers = known
    batch_size = choose_batch_size(estimator.batch_size, len(rows.x))
    pace = _pace(estimator, batch_size)
    estimator.n_rows_seen_ += len(y)
    scalings = estimator._scalings_before()
    clip = preset(estimator.preset).clip
    try:
        for learner in known:
            model = learner.model
            order = torch.Generator().manual_seed(estimator.n_rows_seen_)
            model.train()
            with threads(estimator, model, batch_size):
                for batch in batches(
                    scalings.tensors(rows, model),
                    model,
                    what="training",
                    batch_size=batch_size,
                    generator=order,
                ):
                    given = (batch.x, batch.y, estimator.n_rows_seen_)
                    words: dict[str, Any] = {"weights": batch.weights, "at": " in partial_fit"}
                    step(model, learner.at_pace(pace), *given, clip=clip, **words)
    except BaseException:
        estimator.n_rows_seen_ -= len(y)
        raise
    finally:
        for model in estimator.members_:
            model.eval()
        estimator._judge(None)  # what held-out rows have said is of another model
