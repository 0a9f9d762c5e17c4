"""From rows to predictions: what both estimators share once they are fitted."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from unbounded.estimators import prepared as few
from unbounded.estimators.ensemble import average_by_depth, average_probs, depth_probs
from unbounded.estimators.frames import validate_new
from unbounded.estimators.prepared import Prepared
from unbounded.estimators.rows import Scaling, Scalings, rows_at_once
from unbounded.exits import EarlyExit, predict_early
from unbounded.likelihoods import Prediction
from unbounded.model import UDN
from unbounded.predictive import combine
from unbounded.tables.encoding import Encoding


class Predictor:
    """Depths and predictions of fitted models; the subclass fits them."""

    model_: UDN
    members_: list[UDN]
    input_scaling_: Scaling
    encoding_: Encoding | None = None
    _num_labels: int | None = None  # of targets that have several; None: a class or a number
    standardize: bool
    n_features_in_: int
    _needed: ClassVar[tuple[str, str, str]]  # of a prediction: attribute, what it is, from what

    @property
    def depth_probs_(self) -> NDArray[np.float64]:
        """q(1) … q(m), shape `(max_depth_,)`; of an ensemble the members' average."""
        check_is_fitted(self)
        return average_probs([depth_probs(model) for model in self.members_])

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
        supports = [model.support() for model in self.members_]
        return np.arange(min(s[0] for s in supports), max(s[1] for s in supports) + 1)

    def _expected(self, X: Any, what: str) -> NDArray[Any]:
        """A property of the mixture over depths (and members), such as "mean": `(rows, …)`."""
        x, prepared = self._ready(X)
        found: NDArray[Any] | None = self._of_few(x, prepared, what)
        if found is not None:
            return found
        mixtures = self._mixtures(x, prepared)
        return np.concatenate([getattr(p, what).cpu().numpy() for p in mixtures])

    def _of_few(self, x: NDArray[Any], prepared: Sequence[Prepared], what: str) -> Any:
        """The same of few rows, in NumPy; None where that cannot be, or there are more."""
        if len(x) > few.FEW_ROWS:
            return None
        scaled = self.input_scaling_.apply(x)
        if len(prepared) == 1:
            return prepared[0].expected(what, scaled)
        asked = "probs" if what == "classes" else what
        found = prepared[0].expected_of_all(asked, scaled, prepared[1:])
        if found is None:
            return None
        if what == "mean and std":
            means, deviations = (np.array(part) for part in zip(*found, strict=True))
            mean = means.mean(0)
            return mean, np.sqrt((deviations**2 + (means - mean) ** 2).mean(0))
        average = sum(found) / len(found)
        return average.argmax(1) if what == "classes" else average

    def _predictions(self, X: Any) -> Iterator[Any]:
        """The mixture over depths (and members) for a few thousand rows at a time."""
        return self._mixtures(*self._ready(X))

    def _mixtures(self, x: NDArray[Any], prepared: Sequence[Prepared]) -> Iterator[Any]:
        for members in self._pieces(x, prepared):
            yield members[0] if len(members) == 1 else combine(members)

    def _member_predictions(self, X: Any) -> Iterator[list[Any]]:
        """The mixtures of the members for a few thousand rows at a time."""
        return self._pieces(*self._ready(X))

    def _ready(self, X: Any) -> tuple[NDArray[Any], list[Prepared]]:
        """Rows as the network takes them, and the members, ready to predict."""
        if not hasattr(self, "model_"):  # scikit-learn's words for it take longer to be found
            check_is_fitted(self)
        return validate_new(self, X), [Prepared.of(model) for model in self.members_]

    def _pieces(self, x: NDArray[Any], prepared: Sequence[Prepared]) -> Iterator[list[Any]]:
        """The mixtures of the members for a few thousand rows at a time.

        In double precision: a row's prediction then does not depend, to more digits than anybody
        looks at, on the rows it is predicted together with.
        """
        scalings = Scalings(self.input_scaling_, None)
        device = self.model_.anchor.device
        rows = rows_at_once(self.model_)
        for start in range(0, len(x), rows):
            piece = scalings.x(x[start : start + rows], self.model_).to(device)
            yield [self._checked(found) for one in prepared for found in one.predictions(piece)]

    def _early(
        self, X: Any, exit: float | EarlyExit
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Probabilities by the depths that it takes to be sure, and the depth of each row.

        Each member goes by itself; the depth is that of the one that went deepest.
        """
        check_is_fitted(self)
        x, rule = validate_new(self, X), EarlyExit.of(exit)
        members = [self._early_of(Prepared.of(model), x, rule) for model in self.members_]
        probs = np.mean([found for found, _ in members], 0)
        return probs, np.max([depths for _, depths in members], 0)

    def _early_of(
        self, prepared: Prepared, x: NDArray[Any], rule: EarlyExit
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The same of one member."""
        frozen, scalings = prepared.frozen, Scalings(self.input_scaling_, None)
        stack, device, rows = frozen.stack(), self.model_.anchor.device, rows_at_once(self.model_)
        with torch.inference_mode():
            found = [
                predict_early(
                    stack,
                    frozen.layers,
                    frozen.likelihood,
                    prepared.log_q,
                    scalings.x(x[start : start + rows], self.model_).to(device),
                    rule,
                )
                for start in range(0, len(x), rows)
            ]
        probs = np.concatenate([one.probs.cpu().numpy() for one in found])
        return probs, np.concatenate([one.depths.cpu().numpy() for one in found])

    def _checked(self, prediction: Prediction) -> Prediction:
        attribute, what, such = self._needed
        if hasattr(type(prediction), attribute):  # of the type: a property would be computed
            return prediction
        raise TypeError(
            f"{type(prediction.likelihood).__name__} predicts no {what}: {type(self).__name__} "
            f"needs a likelihood such as {such}"
        )

    def _by_depth(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """What the members say at each of `depths_`, from `(its depths, rows, …)` of each."""
        # Those that share a network share its q.
        models = [model for model in self.members_ for _ in range(model.likelihood.count)]
        return average_by_depth(
            values,
            [model.support()[0] for model in models],
            [depth_probs(model) for model in models],
        )
