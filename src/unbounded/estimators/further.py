"""Training from where models stand, for `partial_fit`."""

from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils import check_random_state

from unbounded.estimators.auto import choose_batch_size
from unbounded.estimators.building import check_arguments, shown, threads
from unbounded.estimators.ensemble import TrainedModels, Training, member_seeds
from unbounded.estimators.rows import Array, WeightedRows, merge
from unbounded.steps.batches import batches
from unbounded.training import History, make_optimizer, step
from unbounded.training.presets import Rates

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator


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
        models = [estimator._build(rows.x, size, one, columns) for one in seeds]
        none = Training(History(), 0, "partial_fit")
        estimator._keep(TrainedModels(models, scalings, none), 0)
        estimator.refit_history_ = None
    known = estimator._optimizers or []
    if [model for model, _ in known] != estimator.members_:  # the very same models
        lr = Rates().lr if estimator.lr == "auto" else estimator.lr  # constant, as no end is known
        known = [(model, make_optimizer(model, lr=lr)) for model in estimator.members_]
    estimator._optimizers = known
    estimator.n_rows_seen_ += len(y)
    scalings = estimator._scalings_before()
    batch_size = choose_batch_size(estimator.batch_size, len(rows.x))
    try:
        for model, optimizer in known:
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
                    step(model, optimizer, *given, weights=batch.weights, at=" in partial_fit")
    except BaseException:
        estimator.n_rows_seen_ -= len(y)
        raise
    finally:
        for model in estimator.members_:
            model.eval()
        estimator._judge(None)  # what held-out rows have said is of another model
