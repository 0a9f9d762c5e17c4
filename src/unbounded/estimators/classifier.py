"""A classifier of unbounded depth."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from unbounded.estimators.base import UDNEstimator
from unbounded.estimators.frames import validate
from unbounded.estimators.further import train_further
from unbounded.estimators.labels import read_classes
from unbounded.estimators.rows import Array, check_weights
from unbounded.estimators.targets import check_repeated, check_targets, target_name
from unbounded.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from unbounded.schema import FileError


@dataclass(kw_only=True, eq=False, repr=False)
class UDNClassifier(ClassifierMixin, UDNEstimator):
    """A classifier whose depth is inferred from the data; scikit-learn's interface.

    Arguments:
        class_weight: a dict of weights, or "balanced": every class counts the same in all.
        The arguments of `UDNEstimator`, below.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = UDNClassifier(random_state=0).fit(X, y)
        >>> model.predict_proba(X).shape, model.predict_by_depth(X).shape[1:]
        ((150, 3), (150, 3))
    """

    class_weight: dict[Any, float] | str | None = None
    _needed: ClassVar = ("log_probs_by_depth", "classes", "Categorical or Bernoulli")

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Learn from rows `(rows, feature)` and their classes `(rows,)`, of any type.

        Args:
            X: an array or frame.
            y: the classes.
            sample_weight: how often each row counts, `(rows,)`.
            eval_set: further rows, (X, y), that choose the best epoch and the depth in place of
                a share of these; they are never learnt from.
        """
        go_on = self._goes_on()
        x, labels = self._check(X, y, reset=not go_on)
        if go_on:
            codes = self._coded(labels)
        else:
            self.classes_, codes = np.unique(labels, return_inverse=True)
        weights = self._weights(sample_weight, labels)
        present = np.unique(codes[weights > 0])
        if len(present) < 2:
            raise ValueError(
                f"the labels hold one class ({self.classes_[present[0]]!r}), "
                "at least two classes are needed"
            )
        self._train(x, codes, weights, len(self.classes_), eval_set)
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
        codes = self._coded(labels)
        if isinstance(self.class_weight, str):
            raise ValueError("class_weight='balanced' needs all rows: give a dict or use fit")
        weights = self._weights(sample_weight, labels)
        train_further(self, x, codes, weights, len(self.classes_))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row: `(rows,)`."""
        codes = [p.classes.cpu().numpy() for p in self._predictions(X)]
        return self.classes_[np.concatenate(codes)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """p(y = c | x) = Σ_ℓ q(ℓ) p(y = c; Ω_ℓ(x)), classes as in `classes_`: `(rows, class)`."""
        return np.concatenate([p.probs.cpu().numpy() for p in self._predictions(X)])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of `predict_proba`, finite where those round to 0: `(rows, class)`."""
        pieces = [p.log_probs.log_softmax(1).cpu().numpy() for p in self._predictions(X)]
        return np.concatenate(pieces)

    def predict_by_depth(self, X: Any) -> NDArray[np.float64]:
        """The class probabilities of each depth alone: `(depth, rows, class)`.

        The first axis goes over `depths_`; weighted by their probabilities the slices add up to
        `predict_proba`.
        """
        pieces = [
            self._by_depth([p.log_probs_by_depth.exp().cpu().numpy() for p in each])
            for each in self._member_predictions(X)
        ]
        return np.concatenate(pieces, 1)

    def _check(self, X: Any, y: Any, reset: bool = True, min_rows: int = 2) -> tuple[Any, Array]:
        check_targets(y)
        x, labels = validate(self, X, y, reset, min_rows)
        is_first = reset and min_rows > 1  # the first rows of several calls may have any classes
        if is_first and labels.dtype.kind != "f":  # fractions are scikit-learn's to tell
            check_repeated(labels, target_name(y))
        check_classification_targets(labels)
        return x, labels

    def _coded(self, y: Array) -> Array:
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"classes {unknown} are not among those of the first call")
        return np.searchsorted(self.classes_, y)

    def _weights(self, sample_weight: Any, labels: Array) -> Array:
        weights = check_weights(sample_weight, len(labels))
        if self.class_weight is None:
            return weights
        balance = compute_sample_weight(self.class_weight, labels)
        return check_weights(weights * balance, len(labels))

    def _describe_targets(self) -> dict[str, Any]:
        """The class labels, and their type."""
        values, dtype = self.classes_.tolist(), self.classes_.dtype
        if not all(isinstance(value, bool | int | float | str | None) for value in values):
            raise ValueError(
                f"classes of type {type(values[0]).__name__} cannot be saved without pickle: "
                "use numbers, booleans or strings"
            )
        return {"classes": {"dtype": "object" if dtype.hasobject else dtype.str, "values": values}}

    def _rebuild_targets(self, described: dict[str, Any], where: str) -> None:
        likelihood = self.model_.likelihood.single
        if isinstance(likelihood, Gaussian):
            raise FileError("a Gaussian predicts numbers, a classifier classes")
        outputs = 2 if isinstance(likelihood, Bernoulli) else None
        if isinstance(likelihood, Categorical):
            outputs = likelihood.num_classes
        self.classes_ = read_classes(described.get("classes"), outputs, f"{where}.classes")

    def _default_likelihood(self, size: int) -> Likelihood:
        return Categorical(size)
