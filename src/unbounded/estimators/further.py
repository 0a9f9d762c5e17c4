"""Training from where a model stands, for `partial_fit`."""

from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils import check_random_state

from unbounded.estimators.auto import choose_batch_size
from unbounded.estimators.building import check_arguments, shown, threads
from unbounded.estimators.ensemble import TrainedModels, Training
from unbounded.estimators.rows import Array, WeightedRows, merge
from unbounded.steps.batches import batches
from unbounded.training import History, make_optimizer, step
from unbounded.training.presets import Rates

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator


def train_further(estimator: "UDNEstimator", x: Any, y: Array, weights: Array, size: int) -> None:
    """One pass over new rows from where the model stands, for `partial_fit`."""
    if estimator._count != 1:
        raise ValueError(f"partial_fit trains one model: n_members is {estimator._count}, not 1")
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
        model = estimator._build(rows.x, size, int(rng.randint(2**31 - 1)), columns)
        none = Training(History(), 0, "partial_fit")
        estimator._keep(TrainedModels([model], scalings, none), 0)
        estimator.refit_history_ = None
    model = estimator.model_
    if estimator._optimizer is None:
        lr = Rates().lr if estimator.lr == "auto" else estimator.lr  # constant, as no end is known
        estimator._optimizer = make_optimizer(model, lr=lr)
    estimator.n_rows_seen_ += len(y)
    scalings = estimator._scalings_before()
    batch_size = choose_batch_size(estimator.batch_size, len(rows.x))
    order = torch.Generator().manual_seed(estimator.n_rows_seen_)
    model.train()
    try:
        with threads(estimator, model, batch_size):
            for batch in batches(
                scalings.tensors(rows, model),
                model,
                what="training",
                batch_size=batch_size,
                generator=order,
            ):
                given = (batch.x, batch.y, estimator.n_rows_seen_)
                place = " in partial_fit"
                step(model, estimator._optimizer, *given, weights=batch.weights, at=place)
    finally:
        model.eval()
        estimator._judge(None)  # what held-out rows have said is of another model
