"""A regressor of unbounded depth."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from unbounded.depth import DepthFamily
from unbounded.estimators.base import Scalings, UDNEstimator
from unbounded.estimators.plain import describe_scaling, rebuild_scaling
from unbounded.estimators.rows import Array, Rows, Scaling
from unbounded.layers import Layers
from unbounded.likelihoods import Gaussian, LearntNoise, Likelihood
from unbounded.priors import DepthPrior, WeightPrior

Floats = NDArray[np.float64]


class UDNRegressor(RegressorMixin, UDNEstimator):
    """A regressor whose depth is inferred from the data."""

    def __init__(
        self,
        *,
        layers: Layers | Callable[[int, int], Layers] | None = None,
        width: int = 64,
        depth: DepthFamily | None = None,
        depth_prior: DepthPrior | None = None,
        weight_prior: WeightPrior | None = None,
        likelihood: Likelihood | None = None,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 0.01,
        patience: int | Literal["auto"] | None = "auto",
        validation_fraction: float = 0.2,
        select: str = "log_score",
        refit: bool = True,
        standardize: bool = True,
        standardize_target: bool = True,
        random_state: Any = None,
        device: str | torch.device = "auto",
        verbose: int = 0,
    ):
        super().__init__(
            layers=layers,
            width=width,
            depth=depth,
            depth_prior=depth_prior,
            weight_prior=weight_prior,
            likelihood=likelihood,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            patience=patience,
            validation_fraction=validation_fraction,
            select=select,
            refit=refit,
            standardize=standardize,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.standardize_target = standardize_target

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows `(rows, feature)` and targets `(rows,)` or `(rows, target)`.

        Args:
            X: an array or frame of finite numbers.
            y: the targets, finite numbers.
            sample_weight: how often each row counts, `(rows,)`.
        """
        x, targets = self._check(X, y)
        self._single_target = targets.ndim == 1
        columns = targets.reshape(len(targets), -1)
        weights = self._check_weights(sample_weight, len(x))
        self._train(x, columns, weights, columns.shape[1])
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over further rows, from where the model stands.

        The first call sets the scaling of inputs and targets; after `fit` it is there already. The
        data set of the ELBO is all rows seen so far. Nothing is held out, so there is no best
        epoch to go back to.
        """
        first = not self.__sklearn_is_fitted__()
        x, targets = self._check(X, y, reset=first, min_rows=1)
        if first:
            self._single_target = targets.ndim == 1
        columns = targets.reshape(len(targets), -1)
        if not first and columns.shape[1] != len(self.target_scaling_.center):
            raise ValueError(
                f"y has {columns.shape[1]} targets, {len(self.target_scaling_.center)} before"
            )
        self._train_further(
            x, columns, self._check_weights(sample_weight, len(x)), columns.shape[1]
        )
        return self

    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of the predictive mixture, in the units of y: `(rows,)` or `(rows, target)`.

        Args:
            X: rows, `(rows, feature)`.
            return_std: also give the standard deviation of the mixture, of the same shape: noise
                and disagreement between depths together.
        """
        means, stds = [], []
        for prediction in self._gaussian_predictions(X):
            means.append(prediction.mean.cpu().numpy())
            if return_std:
                stds.append(prediction.variance.sqrt().cpu().numpy())
        mean = self._shaped(self.target_scaling_.undo(np.concatenate(means)))
        if not return_std:
            return mean
        return mean, self._shaped(np.concatenate(stds) * self.target_scaling_.scale)

    def predict_quantiles(self, X: Any, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """The t with P(Y ≤ t | x) = q, in the units of y: `(quantile, rows)`, quantile first.

        `(quantile, rows, target)` for several targets; without the first axis where `q` is one
        number.
        """
        pieces = [p.quantile(q).cpu().numpy() for p in self._gaussian_predictions(X)]
        values = self._shaped(self.target_scaling_.undo(np.concatenate(pieces, 1)))
        return values[0] if np.ndim(q) == 0 else values

    def predict_by_depth(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of each depth alone, `(depth, rows)` or `(depth, rows, target)`.

        The first axis goes over `depths_`. With `return_std` also the standard deviation of the
        noise that each depth sees, of the same shape: with `depth_probs_` they are the whole
        predictive mixture, as `unbounded.metrics` takes it.
        """
        means, stds = [], []
        for prediction in self._gaussian_predictions(X):
            mean, std = prediction.components()
            means.append(mean.cpu().numpy())
            stds.append(std.cpu().numpy())
        by_depth = self._shaped(self.target_scaling_.undo(np.concatenate(means, 1)))
        if not return_std:
            return by_depth
        return by_depth, self._shaped(np.concatenate(stds, 1) * self.target_scaling_.scale)

    def _gaussian_predictions(self, X: Any) -> Any:
        for prediction in self._predictions(X):
            if not hasattr(prediction, "mean"):
                raise TypeError(
                    f"{type(prediction.likelihood).__name__} predicts no mean: UDNRegressor needs "
                    "a likelihood such as Gaussian"
                )
            yield prediction

    def _shaped(self, values: Array) -> Floats:
        """Without the last axis, target, if y had none."""
        return values[..., 0] if self._single_target else values

    def _check(self, X: Any, y: Any, reset: bool = True, min_rows: int = 2) -> tuple[Array, Array]:
        x, targets = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_min_samples=min_rows,
            multi_output=True,
            y_numeric=True,
        )
        return x, np.asarray(targets, dtype=np.float64)

    def _scalings(self, train: Rows) -> Scalings:
        targets = (
            Scaling.of(train.y, train.weights)
            if self.standardize_target
            else Scaling.none(train.y.shape[1])
        )
        return Scalings(super()._scalings(train).inputs, targets)

    def _describe_targets(self) -> dict[str, Any]:
        return {
            "target_scaling": describe_scaling(self.target_scaling_),
            "single_target": self._single_target,
        }

    def _rebuild_targets(self, described: dict[str, Any]) -> None:
        columns = len(described["target_scaling"]["center"])
        self.target_scaling_ = rebuild_scaling(described["target_scaling"], columns)
        self._single_target = bool(described["single_target"])

    def _default_likelihood(self, size: int) -> Likelihood:
        return Gaussian(LearntNoise(num_targets=size))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
