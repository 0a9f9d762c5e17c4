"""A classifier of unbounded depth."""

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from unbounded.depth import DepthFamily
from unbounded.estimators.base import UDNEstimator
from unbounded.estimators.plain import describe_classes, rebuild_classes
from unbounded.layers import Layers
from unbounded.likelihoods import Categorical, Likelihood, Prediction
from unbounded.likelihoods.categorical import ClassPrediction
from unbounded.priors import DepthPrior, WeightPrior


class UDNClassifier(ClassifierMixin, UDNEstimator):
    """A classifier whose depth is inferred from the data; scikit-learn's interface.

    Thin over `unbounded.fit`. Equal rows are merged into one that counts as often (so that a
    `sample_weight` of 2 and a row that is there twice are the same, to the last bit) and put
    into an order of their own; a share is held out to find the best epoch. Ctrl-C ends training
    and keeps the best model so far.

    Main args:
        width: size of every hidden state.
        epochs: passes over the training rows at most. "auto": 3000 steps, in 20 to 200 epochs.
        batch_size: rows a step. "auto": a power of two near √rows, from 32 to 1024.
        lr: rate of the weights, with Adam; λ learns at a tenth of it.
        validation_fraction: share of the rows (of each class alike) that is held out to find the
            best epoch. Tables too small to spare 8 rows for that are trained to the end.
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
        likelihood: p(y; Ω); `Categorical` by default.
        patience: stop after this many epochs without a better held-out score. "auto": a fifth of
            the epochs. None: never.
        select: the best epoch by "log_score" or by "score" (accuracy).
        standardize: bring every input column to mean 0 and standard deviation 1.
        class_weight: a dict of weights, or "balanced": every class counts the same in all.

    Attributes:
        model_: the `UDN`, in evaluation mode; the first one of an ensemble.
        members_: all of them.
        classes_: the class labels, sorted.
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
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = UDNClassifier(random_state=0).fit(X, y)
        >>> model.predict_proba(X).shape, model.predict_by_depth(X).shape[1:]
        ((150, 3), (150, 3))
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
        class_weight: dict[Any, float] | str | None = None,
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
        self.class_weight = class_weight

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows `(rows, feature)` and their classes `(rows,)`, of any type.

        Args:
            X: an array or frame of finite numbers.
            y: the classes.
            sample_weight: how often each row counts, `(rows,)`.
        """
        x, labels = self._check(X, y)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        weights = self._check_weights(sample_weight, len(x))
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, labels)
        self._check_classes(codes[weights > 0])
        self._train(x, codes, weights, len(self.classes_))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over further rows, from where the model stands.

        The first call says which `classes` there will be and sets the scaling of the inputs; after
        `fit` neither is needed. The data set of the ELBO is all rows seen so far. Nothing is held
        out, so there is no best epoch to go back to.
        """
        first = not self.__sklearn_is_fitted__()
        if first and classes is None:
            raise ValueError("classes must be given to the first call of partial_fit")
        x, labels = self._check(X, y, reset=first, min_rows=1)
        if first:
            self.classes_ = np.unique(classes)
            if len(self.classes_) < 2:
                raise ValueError(f"there is one class ({self.classes_[0]!r}), two are needed")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes are {self.classes_} since the first call, got {classes}")
        unknown = np.setdiff1d(labels, self.classes_)
        if unknown.size:
            raise ValueError(f"classes {unknown} are not among those of the first call")
        codes = np.searchsorted(self.classes_, labels)
        weights = self._check_weights(sample_weight, len(x))
        if self.class_weight is not None:
            if isinstance(self.class_weight, str):
                raise ValueError("class_weight='balanced' needs all rows: give a dict or use fit")
            weights = weights * compute_sample_weight(self.class_weight, labels)
        self._train_further(x, codes, weights, len(self.classes_))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row: `(rows,)`."""
        codes = [p.classes.cpu().numpy() for p in self._class_predictions(X)]
        return self.classes_[np.concatenate(codes)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """p(y = c | x) = Σ_ℓ q(ℓ) p(y = c; Ω_ℓ(x)), classes as in `classes_`: `(rows, class)`."""
        return np.concatenate([p.probs.cpu().numpy() for p in self._class_predictions(X)])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of `predict_proba`, finite where those round to 0: `(rows, class)`."""
        return np.concatenate([p.log_probs.cpu().numpy() for p in self._class_predictions(X)])

    def predict_by_depth(self, X: Any) -> NDArray[np.float64]:
        """The class probabilities of each depth alone: `(depth, rows, class)`.

        The first axis goes over `depths_`; weighted by their probabilities the slices add up to
        `predict_proba`.
        """
        pieces = [
            self._by_depth([self._classes(p).log_probs_by_depth.exp().cpu().numpy() for p in each])
            for each in self._member_predictions(X)
        ]
        return np.concatenate(pieces, 1)

    def _class_predictions(self, X: Any) -> Any:
        for prediction in self._predictions(X):
            yield self._classes(prediction)

    @staticmethod
    def _classes(prediction: Prediction) -> ClassPrediction:
        if not isinstance(prediction, ClassPrediction):
            raise TypeError(
                f"{type(prediction.likelihood).__name__} predicts no classes: UDNClassifier "
                "needs a likelihood such as Categorical or Bernoulli"
            )
        return prediction

    def _check(
        self, X: Any, y: Any, reset: bool = True, min_rows: int = 2
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        x, labels = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_min_samples=min_rows,
        )
        check_classification_targets(labels)
        return x, labels

    def _check_classes(self, codes: NDArray[Any]) -> None:
        present = np.unique(codes)
        if len(present) < 2:
            raise ValueError(
                f"the labels hold one class ({self.classes_[present[0]]!r}), "
                "at least two classes are needed"
            )

    def _describe_targets(self) -> dict[str, Any]:
        return {"classes": describe_classes(self.classes_)}

    def _rebuild_targets(self, described: dict[str, Any]) -> None:
        self.classes_ = rebuild_classes(described["classes"])

    def _default_likelihood(self, size: int) -> Likelihood:
        return Categorical(size)
