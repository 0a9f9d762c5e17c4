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
    """A regressor whose depth is inferred from the data; scikit-learn's interface.

    Thin over `unbounded.fit`. Equal rows are merged into one that counts as often (so that a
    `sample_weight` of 2 and a row that is there twice are the same, to the last bit) and put
    into an order of their own; a share is held out to find the best epoch. Ctrl-C ends training
    and keeps the best model so far.

    Main args:
        width: size of every hidden state.
        epochs: passes over the training rows at most. "auto": 3000 steps, in 20 to 200 epochs.
        batch_size: rows a step. "auto": a power of two near √rows, from 32 to 1024.
        lr: rate of the weights, with Adam; λ learns at a tenth of it.
        validation_fraction: share of the rows that is held out to find the best epoch. Tables
            too small to spare 8 rows for that are trained to the end.
        refit: once the best epoch is known, train anew on all rows up to it, with a rate that
            falls to nothing in the second half. False keeps the weights of the best epoch.
        n_members: train this many models at once (`unbounded.engine`) from different seeds and
            average their predictions: a deep ensemble.
        random_state: a number makes everything reproducible, bit for bit on a CPU.
        device: "auto" (a GPU if there is one), or what `torch.device` takes.
        verbose: 1 shows a progress bar on standard error.

    Other args:
        layers: a `Layers` of the core in place of dense ones, or a callable
            (in_features, out_features) -> `Layers`.
        depth: the family q(ℓ; λ); a truncated Poisson from λ = 1 by default.
        depth_prior: p(ℓ); ℓ−1 ~ Poisson(0.5) by default.
        weight_prior: p(θ); N(0, 1) by default.
        likelihood: p(y; Ω); `Gaussian` with learnt noise by default.
        patience: stop after this many epochs without a better held-out score. "auto": a fifth of
            the epochs. None: never.
        select: the best epoch by "log_score" or by "score" (RMSE).
        standardize: bring every input column to mean 0 and standard deviation 1.
        standardize_target: the same for the target; predictions come back in its units.

    Attributes:
        model_: the `UDN`, in evaluation mode; the first one of an ensemble.
        members_: all of them.
        depth_probs_: q(1) … q(m), `(max_depth_,)`.
        depth_mean_: E[ℓ].
        max_depth_: m, the largest depth with mass.
        depths_: the depths of `predict_by_depth`: 1 … m, or the one depth of a `FixedDepth`.
        history_: one row an epoch, from the training with held-out rows.
        refit_history_: the same of the training on all rows; None if there was none.
        best_epoch_: the epoch that the held-out rows chose.
        n_iter_: epochs of that first training.
        stopped_: why it ended: "epochs", "patience" or "interrupted".
        n_features_in_, feature_names_in_: of the table.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = UDNRegressor(random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> low, high = model.predict_quantiles(X, [0.05, 0.95])
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
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 0.005,
        patience: int | Literal["auto"] | None = "auto",
        validation_fraction: float = 0.2,
        select: str = "log_score",
        refit: bool = True,
        standardize: bool = True,
        standardize_target: bool = True,
        n_members: int = 1,
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
            n_members=n_members,
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
        for each in self._member_predictions(X):
            parts = [self._gaussian(prediction).components() for prediction in each]
            member_means = [part[0].cpu().numpy() for part in parts]
            mean = self._by_depth(member_means)
            squares = [
                m**2 + part[1].cpu().numpy() ** 2
                for m, part in zip(member_means, parts, strict=True)
            ]
            means.append(mean)
            stds.append(
                parts[0][1].cpu().numpy()
                if len(parts) == 1
                else np.sqrt(np.maximum(self._by_depth(squares) - mean**2, 0))
            )
        by_depth = self._shaped(self.target_scaling_.undo(np.concatenate(means, 1)))
        if not return_std:
            return by_depth
        return by_depth, self._shaped(np.concatenate(stds, 1) * self.target_scaling_.scale)

    def _gaussian_predictions(self, X: Any) -> Any:
        for prediction in self._predictions(X):
            yield self._gaussian(prediction)

    @staticmethod
    def _gaussian(prediction: Any) -> Any:
        if not hasattr(prediction, "mean"):
            raise TypeError(
                f"{type(prediction.likelihood).__name__} predicts no mean: UDNRegressor needs "
                "a likelihood such as Gaussian"
            )
        return prediction

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
