"""What both estimators share: from a table to `unbounded.fit`, and from rows to predictions."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from unbounded.depth import DepthFamily
from unbounded.estimators.rows import Array, Rows, Scaling, merge, split
from unbounded.frozen import Frozen
from unbounded.layers import Dense, Layers
from unbounded.likelihoods import Likelihood, Prediction
from unbounded.model import UDN
from unbounded.priors import DepthPrior, WeightPrior
from unbounded.training import History, fit, make_optimizer, step

# Rows that go through the network at a time when predicting.
_PREDICTION_ROWS = 8192


class UDNEstimator(BaseEstimator):
    """The common part of `UDNClassifier` and `UDNRegressor`; their docstrings tell the arguments.

    A subclass turns targets into what the likelihood takes and predictions into what
    scikit-learn expects; all training goes through `_train`, all predicting through `_predictions`.
    """

    def __init__(
        self,
        *,
        layers: Layers | Callable[[int, int], Layers] | None = None,
        width: int = 64,
        depth: DepthFamily | None = None,
        depth_prior: DepthPrior | None = None,
        weight_prior: WeightPrior | None = None,
        likelihood: Likelihood | None = None,
        epochs: int = 300,
        batch_size: int = 64,
        lr: float = 0.005,
        patience: int | None = 30,
        validation_fraction: float = 0.1,
        select: str = "log_score",
        standardize: bool = True,
        random_state: Any = None,
        device: str | torch.device = "auto",
        verbose: int = 0,
    ):
        self.layers = layers
        self.width = width
        self.depth = depth
        self.depth_prior = depth_prior
        self.weight_prior = weight_prior
        self.likelihood = likelihood
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.select = select
        self.standardize = standardize
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    model_: UDN
    history_: History
    n_features_in_: int

    @property
    def depth_probs_(self) -> NDArray[np.float64]:
        """q(1) … q(m), shape `(max_depth_,)`."""
        check_is_fitted(self)
        first, _ = self.model_.support()
        probs = self.model_.depth_log_probs().detach().double().exp().cpu().numpy()
        return np.concatenate([np.zeros(first - 1), probs / probs.sum()])

    @property
    def max_depth_(self) -> int:
        """m, the largest depth with mass."""
        return len(self.depth_probs_)

    @property
    def depth_mean_(self) -> float:
        """E[ℓ] under q."""
        probs = self.depth_probs_
        return float(probs @ np.arange(1, len(probs) + 1))

    @property
    def depths_(self) -> NDArray[np.int64]:
        """The depths of `predict_by_depth`: 1 … m, or the one depth of a `FixedDepth`."""
        check_is_fitted(self)
        first, last = self.model_.support()
        return np.arange(first, last + 1)

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the fitted estimator to one safetensors file: data only, no pickle.

        Args:
            path: the file; replaced if it is there.
            extra: plain data (JSON) of your own to travel in the header.
        """
        from unbounded.estimators import files

        files.save(self, path, extra=extra)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Read what `save` wrote.

        Args:
            path: the file.
            options: `device`, and parts of your own (`layers`, `likelihood`, `depth`, …) where the
                model was fitted with ones that a file cannot carry.
        """
        from unbounded.estimators import files

        found = files.load(path, **options)
        if not isinstance(found, cls):
            raise ValueError(f"{path} holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    # Training

    def _default_likelihood(self, size: int) -> Likelihood:
        raise NotImplementedError

    def _describe_targets(self) -> dict[str, Any]:
        """What `save` must know of the targets, as plain data."""
        raise NotImplementedError

    def _rebuild_targets(self, described: dict[str, Any]) -> None:
        """The inverse of `_describe_targets`."""
        raise NotImplementedError

    def _check_weights(self, sample_weight: Any, rows: int) -> NDArray[np.float64]:
        if sample_weight is None:
            return np.ones(rows)
        weights = np.asarray(
            sample_weight.to_numpy() if hasattr(sample_weight, "to_numpy") else sample_weight,
            dtype=np.float64,
        )
        if weights.ndim == 0:
            weights = np.full(rows, float(weights))
        if weights.shape != (rows,):
            raise ValueError(f"sample_weight must have shape ({rows},), got {weights.shape}")
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError("sample_weight must be finite and at least 0")
        if not (weights > 0).any():
            raise ValueError("sample_weight is zero in every row: there is nothing to learn from")
        return weights

    def _check_arguments(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in [0, 1), got {self.validation_fraction}"
            )

    def _train(self, x: Array, y: Array, weights: Array, size: int) -> None:
        """Merge, split, scale and fit.

        Args:
            x: `(rows, feature)`.
            y: classes `(rows,)` or numbers `(rows, target)`.
            weights: `(rows,)`.
            size: how many classes or targets there are.
        """
        self._check_arguments()
        rng = check_random_state(self.random_state)
        rows = merge(x, y, weights)
        classes = rows.y if rows.y.ndim == 1 else None
        training, held = split(len(rows.x), self.validation_fraction, classes, rng)
        train, validation = rows.take(training), rows.take(held)
        self._start(train, size, rng)
        has_validation = len(held) > 0
        result = fit(
            self.model_,
            self._inputs(train.x),
            self._targets(train.y),
            weights=_weights(train),
            validation=(
                self._inputs(validation.x),
                self._targets(validation.y),
                _weights(validation),
            )
            if has_validation
            else None,
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(train.x)),
            lr=self.lr,
            patience=self.patience if has_validation else None,
            select=self.select,
            progress=bool(self.verbose),
        )
        if not result.history.rows:
            raise KeyboardInterrupt  # before the end of the first epoch: there is nothing to keep
        self.history_ = result.history
        self.best_epoch_ = result.best_epoch
        self.n_iter_ = len(result.history)
        self.stopped_ = result.stopped
        self.n_rows_seen_ = len(x)
        self.model_.eval()

    def _start(self, train: Rows, size: int, rng: np.random.RandomState) -> None:
        """Scaling from the training rows and a new model."""
        self.input_scaling_ = (
            Scaling.of(train.x, train.weights)
            if self.standardize
            else Scaling.none(train.x.shape[1])
        )
        self._start_targets(train)
        likelihood = (
            self._default_likelihood(size)
            if self.likelihood is None
            else copy.deepcopy(self.likelihood)
        )
        model = UDN(
            self._layers(train.x.shape[1], likelihood.num_outputs(size)),
            likelihood,
            # Copies: training moves λ, and the arguments stay as they were given.
            copy.deepcopy(self.depth),
            copy.deepcopy(self.depth_prior),
            copy.deepcopy(self.weight_prior),
            seed=int(rng.randint(2**31 - 1)),
        )
        self.model_ = model.to(resolve_device(self.device))
        self._optimizer: torch.optim.Optimizer | None = None

    def _start_targets(self, train: Rows) -> None:
        """Learn the scaling of the targets, where there is one."""

    def _layers(self, in_features: int, out_features: int) -> Layers:
        if self.layers is None:
            return Dense(in_features, self.width, out_features, init="he")
        if isinstance(self.layers, Layers):
            return self.layers
        if not callable(self.layers):
            raise ValueError(
                "layers must be a Layers or a callable (in_features, out_features) -> Layers, "
                f"got {type(self.layers).__name__}"
            )
        return self.layers(in_features, out_features)

    def _inputs(self, x: Array) -> torch.Tensor:
        scaled = torch.from_numpy(np.ascontiguousarray(self.input_scaling_.apply(x)))
        return scaled.long() if self.model_.layers.integer_inputs else scaled

    def _targets(self, y: Array) -> Array:
        return y

    def _train_further(self, x: Array, y: Array, weights: Array, size: int) -> None:
        """One pass over new rows from where the model stands, for `partial_fit`."""
        rows = merge(x, y, weights)
        if not self.__sklearn_is_fitted__():
            self._check_arguments()
            self._start(rows, size, check_random_state(self.random_state))
            self.history_, self.best_epoch_, self.n_iter_ = History(), 0, 0
            self.stopped_, self.n_rows_seen_ = "partial_fit", 0
        model = self.model_
        if self._optimizer is None:
            self._optimizer = make_optimizer(model, lr=self.lr)
        self.n_rows_seen_ += len(x)
        inputs = self._inputs(rows.x).to(model.anchor.device)
        if not model.layers.integer_inputs:
            inputs = inputs.to(model.anchor.dtype)
        targets = model.likelihood.check_targets(torch.as_tensor(self._targets(rows.y)))
        targets = targets.to(model.anchor.device)
        if targets.is_floating_point():
            targets = targets.to(model.anchor.dtype)
        counts = torch.as_tensor(rows.weights).to(inputs.device, model.anchor.dtype)
        order = np.random.RandomState(self.n_rows_seen_ % 2**32).permutation(len(rows.x))
        model.train()
        for piece in np.array_split(order, -(-len(order) // self.batch_size)):
            index = torch.as_tensor(piece, device=inputs.device)
            step(
                model,
                self._optimizer,
                inputs[index],
                targets[index],
                self.n_rows_seen_,
                weights=counts[index],
                at=" in partial_fit",
            )
        model.eval()

    # Predicting

    def _predictions(self, X: Any) -> Iterator[Prediction]:
        """The mixture over depths for a few thousand rows at a time.

        In double precision: a row's prediction then does not depend, to more digits than anybody
        looks at, on the rows it is predicted together with.
        """
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        frozen: Frozen = self.model_.freeze().double()
        log_q = frozen.depth_probs.log()
        device = self.model_.anchor.device
        for start in range(0, len(x), _PREDICTION_ROWS):
            piece = self._inputs(x[start : start + _PREDICTION_ROWS])
            with torch.inference_mode():  # closed before the yield: it must not leak to the caller
                outputs, _ = frozen(piece.to(device))
            yield frozen.likelihood.predict(outputs, log_q)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and state["model_"].anchor.is_cuda:
            # A pickle made beside a GPU opens on machines without one.
            state = {**state, "model_": copy.deepcopy(state["model_"]).cpu(), "_optimizer": None}
        return state


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _weights(rows: Rows) -> Array | None:
    """None where every row counts once: the common case is spared a product."""
    return None if (rows.weights == 1).all() else rows.weights
