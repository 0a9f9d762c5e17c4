"""A classifier of unbounded depth."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from unbounded.estimators.attempt import attempt
from unbounded.estimators.base import UDNEstimator
from unbounded.estimators.class_nearness import close_classes
from unbounded.estimators.encoded import known
from unbounded.estimators.frames import validate
from unbounded.estimators.further import train_further
from unbounded.estimators.labels import read_classes
from unbounded.estimators.rows import Array, Scalings, check_weights
from unbounded.estimators.shares import Shares, learnt_further, saved
from unbounded.estimators.targets import (
    check_indicator,
    check_repeated,
    check_targets,
    is_indicator,
    target_name,
    unmasked,
)
from unbounded.exits import EarlyExit
from unbounded.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, MultiLabel
from unbounded.likelihoods.categorical import ClassLikelihood
from unbounded.schema import FileError, whole

_SHARE = 0.0125  # of a time limit, that the last step of each of up to four networks may take


@dataclass(kw_only=True, eq=False, repr=False)
class UDNClassifier(ClassifierMixin, UDNEstimator):
    """A classifier whose depth is inferred from the data; scikit-learn's interface.

    It has the arguments below, and one more.

    Arguments:
        class_weight: a dict of weights, or "balanced": every class counts the same in all.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = UDNClassifier(random_state=0).fit(X, y)
        >>> model.predict_proba(X).shape, model.predict_by_depth(X).shape[1:]
        ((150, 3), (150, 3))
    """

    class_weight: dict[Any, float] | str | None = None
    _needed: ClassVar = ("log_probs_by_depth", "classes", "Categorical, Bernoulli or MultiLabel")

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Learn from rows `(rows, feature)` and their classes `(rows,)`, of any type, or labels.

        Args:
            X: an array or frame.
            y: the classes; or, where a row may have several labels, `(rows, label)` of 0 and 1.
            sample_weight: how often each row counts, `(rows,)`.
            eval_set: further rows, (X, y), that choose the best epoch and the depth in place of
                a share of these; they are never learnt from.
        """
        with attempt(self):
            go_on = self._goes_on()
            x, labels = self._check(X, y, reset=not go_on)
            if not go_on:
                self._begin(labels)
            codes = self._coded(labels)
            weights = self._weights(sample_weight, labels)
            present = np.unique(codes[weights > 0])
            if not self._num_labels and len(present) < 2:
                raise ValueError(
                    f"the labels hold one class ({self.classes_.tolist()[present[0]]!r}), "
                    "at least two classes are needed"
                )
            x = known(self, X, x) if go_on else x
            self._train(x, codes, weights, len(self.classes_), eval_set)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over further rows, from where the model stands.

        The first call says which `classes` there will be (not of labels, which are all there) and
        sets the scaling of the inputs; after `fit` neither is needed. The data set of the ELBO is
        all rows seen so far. Nothing is held out, so there is no best epoch to go back to. After
        `fit` the rate is a twentieth of `lr`, so that new rows do not undo what was learnt; else it
        falls with the square root of the steps.
        """
        first = not self.__sklearn_is_fitted__()
        if first and classes is None and not is_indicator(y):
            raise ValueError("classes must be given to the first call of partial_fit")
        x, labels = self._check(X, y, reset=first, min_rows=1)
        if first:
            self._begin(labels if labels.ndim == 2 else np.unique(classes))
            if not self._num_labels and len(self.classes_) < 2:
                raise ValueError(f"there is one class ({self.classes_[0]!r}), two are needed")
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes are {self.classes_} since the first call, got {classes}")
        codes = self._coded(labels)
        if isinstance(self.class_weight, str):
            raise ValueError("class_weight='balanced' needs all rows: give a dict or use fit")
        weights = self._weights(sample_weight, labels)
        seen = x if first else self._further(X, x, codes, weights, len(self.classes_))
        train_further(self, seen, codes, weights, len(self.classes_))
        learnt_further(self, x, codes)
        return self

    def predict(self, X: Any, exit: float | EarlyExit | None = None) -> Any:
        """The most probable class of each row: `(rows,)`; or its labels: `(rows, label)`.

        With `exit` also the depth at which each row left, see `predict_proba`.
        """
        if exit is not None:
            probs, depths = self._early(X, exit)
            best = (probs > 0.5).astype(np.int64) if self._num_labels else probs.argmax(1)
            return (best if self._num_labels else self.classes_[best]), depths
        codes = self._expected(X, "classes")
        return codes if self._num_labels else self.classes_[codes]

    def predict_proba(self, X: Any, exit: float | EarlyExit | None = None) -> Any:
        """p(y = c | x) = Σ_ℓ q(ℓ) p(y = c; Ω_ℓ(x)), classes as in `classes_`: `(rows, class)`.

        Where there are labels, the probability of each: `(rows, label)`.

        Args:
            X: rows, `(rows, feature)`.
            exit: let each row leave at the first depth where the mixture so far is that sure,
                such as 0.99 (`unbounded.EarlyExit`). Then the result is a pair:
                the probabilities by the depths that were run, and how many these were, `(rows,)`;
                of an ensemble, in the member that went deepest.
        """
        if exit is not None:
            return self._early(X, exit)
        return self._expected(X, "probs")

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of `predict_proba`, finite where those round to 0: `(rows, class)`."""
        found = (p.log_probs for p in self._predictions(X))
        logs = (p.clamp(max=0) if self._num_labels else p.log_softmax(1) for p in found)
        return np.concatenate([p.cpu().numpy() for p in logs])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The log-odds of the second of two classes, `(rows,)`, or of each label: `(rows, label)`.

        Of more classes the logarithms of their probabilities, `(rows, class)`.
        """
        if self.__sklearn_is_fitted__() and self._num_labels:
            return np.concatenate([p.log_odds.cpu().numpy() for p in self._predictions(X)])
        logs = self.predict_log_proba(X)
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict_by_depth(self, X: Any) -> NDArray[np.float64]:
        """The probabilities of classes, or labels, of each depth alone: `(depth, rows, class)`.

        The first axis goes over `depths_`; weighted by their probabilities the slices add up to
        `predict_proba`.
        """
        pieces = [
            self._by_depth([p.log_probs_by_depth.exp().cpu().numpy() for p in each])
            for each in self._member_predictions(X)
        ]
        return np.concatenate(pieces, 1)

    def _check(self, X: Any, y: Any, reset: bool = True, min_rows: int = 2) -> tuple[Any, Array]:
        if hasattr(y, "toarray"):  # labels as a sparse matrix
            y = y.toarray()
        check_targets(y)
        if is_indicator(y):
            x, labels = validate(self, X, y, reset, min_rows, multi_output=True)
            return x, check_indicator(labels, y)
        x, labels = validate(self, X, unmasked(y), reset, min_rows)
        is_first = reset and min_rows > 1  # the first rows of several calls may have any classes
        if is_first and labels.dtype.kind != "f":  # fractions are scikit-learn's to tell
            check_repeated(labels, target_name(y))
        check_classification_targets(labels)
        return x, labels

    def _begin(self, labels: Array) -> None:
        """Take from the first targets which classes, or how many labels, there are."""
        self._num_labels = labels.shape[1] if labels.ndim == 2 else None
        self.classes_ = np.unique(labels) if labels.ndim == 1 else np.arange(labels.shape[1])

    def _coded(self, y: Array) -> Array:
        if (y.shape[1] if y.ndim == 2 else None) != self._num_labels:
            before = f"{self._num_labels} labels" if self._num_labels else "classes"
            now = f"{y.shape[1]} labels" if y.ndim == 2 else "classes"
            raise ValueError(f"y holds {now}, {before} since the first call")
        if self._num_labels:
            return y
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"classes {unknown} are not among those of the first call")
        return np.searchsorted(self.classes_, y)

    def _weights(self, sample_weight: Any, labels: Array) -> Array:
        weights = check_weights(sample_weight, len(labels))
        if self.class_weight is None:
            return weights
        if labels.ndim == 2:
            raise ValueError("class_weight is for classes; where there are labels, give weights")
        balance = compute_sample_weight(self.class_weight, labels)
        return check_weights(weights * balance, len(labels))

    def _describe_targets(self) -> dict[str, Any]:
        """The classes and their type, or how many labels there are."""
        if self._num_labels:
            return {"num_labels": self._num_labels, **saved(self)}
        values, dtype = self.classes_.tolist(), self.classes_.dtype
        if not all(isinstance(value, bool | int | float | str | None) for value in values):
            raise ValueError(
                f"classes of type {type(values[0]).__name__} cannot be saved without pickle: "
                "use numbers, booleans or strings"
            )
        kind = "object" if dtype.hasobject else dtype.str
        return {"classes": {"dtype": kind, "values": values}, **saved(self)}

    def _rebuild_targets(self, described: dict[str, Any], where: str) -> None:
        self._shares = Shares.from_dict(described.get("shares"), f"{where}.shares")
        likelihood = self.model_.likelihood.single
        if isinstance(likelihood, Gaussian):
            raise FileError("a Gaussian predicts numbers, a classifier classes")
        count = described.get("num_labels")  # files of earlier versions have none
        is_labels = isinstance(likelihood, MultiLabel)
        if is_labels if count is None else isinstance(likelihood, ClassLikelihood):
            raise FileError(f"a {type(likelihood).__name__} does not predict these targets")
        self._num_labels = None
        if count is not None:
            exactly = (likelihood.num_labels,) * 2 if isinstance(likelihood, MultiLabel) else (1,)
            self._num_labels = whole(*exactly)(count, f"{where}.num_labels")
            self.classes_ = np.arange(self._num_labels)
            return
        outputs = 2 if isinstance(likelihood, Bernoulli) else None
        if isinstance(likelihood, Categorical):
            outputs = likelihood.num_classes
        self.classes_ = read_classes(described.get("classes"), outputs, f"{where}.classes")

    def _close(
        self, models: Any, scalings: Scalings, learnt: Any, held: Any, own: bool, before: Any
    ) -> Any:
        left = math.inf if self.time_limit is None else _SHARE * self.time_limit
        return close_classes(models, scalings, learnt, held, left, own and not self.warm_start)

    def _default_likelihood(self, size: int) -> Likelihood:
        return MultiLabel(size) if self._num_labels else Categorical(size)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
