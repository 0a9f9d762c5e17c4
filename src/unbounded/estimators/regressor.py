"""A regressor of unbounded depth."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unbounded.estimators import conformal
from unbounded.estimators import levels as interval_levels
from unbounded.estimators.attempt import attempt
from unbounded.estimators.base import UDNEstimator
from unbounded.estimators.calibration import HeldOutPredictions, cautious
from unbounded.estimators.closing import close
from unbounded.estimators.encoded import known
from unbounded.estimators.ensemble import Floats
from unbounded.estimators.frames import validate
from unbounded.estimators.further import train_further
from unbounded.estimators.rows import Array, Scaling, Scalings, WeightedRows, check_weights
from unbounded.estimators.shares import Shares, learnt_further, saved
from unbounded.estimators.targets import check_numbers, check_targets
from unbounded.layers import Layers
from unbounded.likelihoods import BalancedGaussian, Gaussian, LearntNoise, Likelihood
from unbounded.likelihoods.categorical import ClassLikelihood
from unbounded.likelihoods.gaussian import GaussianPrediction
from unbounded.predictive import combine
from unbounded.schema import FileError, flag
from unbounded.training import preset

_SHARE = 0.05  # of a time limit, that least squares may take


@dataclass(kw_only=True, eq=False, repr=False)
class UDNRegressor(RegressorMixin, UDNEstimator):
    """A regressor whose depth is inferred from the data; scikit-learn's interface.

    It has the arguments below, and one more.

    Arguments:
        standardize_target: bring the target to mean 0 and standard deviation 1; predictions come
            back in its units.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = UDNRegressor(random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> low, high = model.predict_quantiles(X, [0.05, 0.95])
    """

    standardize_target: bool = True
    _needed: ClassVar = ("mean", "mean", "Gaussian")

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Learn from rows `(rows, feature)` and targets `(rows,)` or `(rows, target)`.

        Args:
            X: an array or frame.
            y: the targets, finite numbers.
            sample_weight: how often each row counts, `(rows,)`.
            eval_set: further rows, (X, y), that choose the best epoch and the depth in place of
                a share of these; they are never learnt from.
        """
        with attempt(self):
            go_on = self._goes_on()
            x, targets = self._check(X, y, reset=not go_on)
            if not go_on:
                self._single_target, self._num_targets = targets.ndim == 1, targets[:1].size
            columns = self._coded(targets)
            weights = check_weights(sample_weight, len(columns))
            x = known(self, X, x) if go_on else x
            self._train(x, columns, weights, columns.shape[1], eval_set)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over further rows, from where the model stands.

        The first call sets the scaling of inputs and targets, so give it rows of all kinds; after
        `fit` it is there already. The data set of the ELBO is all rows seen so far. Nothing is held
        out, so there is no best epoch to go back to. After `fit` the rate is a twentieth of `lr`:
        new rows adjust what was learnt, and do not undo it. Else it falls with the square root of
        the steps.
        """
        first = not self.__sklearn_is_fitted__()
        x, targets = self._check(X, y, reset=first, min_rows=1)
        if first:
            self._single_target, self._num_targets = targets.ndim == 1, targets[:1].size
        columns = self._coded(targets)
        weights = check_weights(sample_weight, len(columns))
        seen = x if first else self._further(X, x, columns, weights, self._num_targets)
        train_further(self, seen, columns, weights, columns.shape[1])
        learnt_further(self, x, columns)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of the predictive mixture, in the units of y: `(rows,)` or `(rows, target)`.

        Args:
            X: rows, `(rows, feature)`.
            return_std: also give the standard deviation of the mixture, of the same shape: noise
                and disagreement between depths together.
        """
        if not return_std:
            means = self._expected(X, "mean")  # which says so first if nothing is fitted
            return self._shaped(self.target_scaling_.undo(means))
        x, prepared = self._ready(X)
        few = self._of_few(x, prepared, "mean and std")
        pieces = [few] if few is not None else map(_moments, self._mixtures(x, prepared))
        mean, std = self._in_units(pieces, 0)
        return mean, std

    def predict_quantiles(self, X: Any, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Floats:
        """The t with P(Y ≤ t | x) = q, in the units of y: `(quantile, rows)`, quantile first.

        `(quantile, rows, target)` for several targets; without the first axis where `q` is one
        number. They are quantiles of the mixture over depths, at levels that hold what they say on
        held-out rows (`levels_`, see `unbounded.estimators.levels`).
        """
        pieces = [self._quantiles(p, q) for p in self._predictions(X)]
        values = self._shaped(self.target_scaling_.undo(np.concatenate(pieces, 1)))
        return values[0] if np.ndim(q) == 0 else values

    def _quantiles(self, prediction: GaussianPrediction, q: float | Sequence[float]) -> Floats:
        """`(quantile, rows, target)` in the units of the network."""
        wanted = np.asarray(q, np.float64).reshape(-1)
        if not ((wanted > 0) & (wanted < 1)).all():
            raise ValueError(f"quantile levels must be strictly between 0 and 1, got {q}")
        asked = self._asked(wanted)
        distinct = np.unique(asked)
        found = prediction.quantile(distinct.tolist()).cpu().numpy()
        columns = (found[np.searchsorted(distinct, one), :, k] for k, one in enumerate(asked))
        return np.stack(list(columns), 2)

    def _asked(self, levels: Floats) -> list[Floats]:
        """For each target the levels at which its mixture has quantiles at these."""
        return [levels if one is None else one.nominal(levels) for one in self.levels_]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper ends that hold the target with this probability, by conformal prediction.

        Of a further row like those of training, and whatever the model is worth: held-out rows say
        how many standard deviations it takes (`unbounded.estimators.conformal`). Both `(rows,)` or
        `(rows, target)`, in the units of y.
        """
        wide = self.interval_factor(coverage)
        mean, std = self.predict(X, return_std=True)
        reach = std * (wide[0] if self._single_target else wide)
        return mean - reach, mean + reach

    def interval_factor(self, coverage: float) -> Floats:
        """How many standard deviations `predict_interval` goes to each side, `(target,)`."""
        check_is_fitted(self)
        if self.conformal_scores_ is None:
            raise ValueError(
                "intervals need held-out rows that were not learnt from: there were none "
                "(a refit, partial_fit, a validation_fraction of 0, or very few rows)"
            )
        # Estimators that were pickled earlier have no shares.
        shares = getattr(self, "conformal_shares_", None)
        return conformal.factor(self.conformal_scores_, coverage, shares)

    def predict_by_depth(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean of each depth alone, `(depth, rows)` or `(depth, rows, target)`.

        The first axis goes over `depths_`. With `return_std` also the standard deviation of the
        noise that each depth sees, of the same shape: with `depth_probs_` they are the whole
        predictive mixture of one network, as `unbounded.metrics` takes it. Of several members
        they are the moments of each depth; `predict_components` has the mixture itself.
        """
        mean, std = self._in_units(map(self._components, self._member_predictions(X)), 1)
        return (mean, std) if return_std else mean

    def predict_components(self, X: Any) -> tuple[Floats, Floats, Floats]:
        """The Gaussians that predictions are a mixture of, one for each depth of each member.

        Their probabilities `(component,)`, means and standard deviations, both `(component, rows)`
        or `(component, rows, target)`, as `unbounded.metrics` takes them.
        """
        return self._both(X)[1]

    def _both(self, X: Any) -> tuple[list[Floats], tuple[Floats, Floats, Floats]]:
        """What `predict_by_depth` and `predict_components` give, by one pass."""
        by_depth, components = [], []
        probs = np.ones(0)
        for members in self._member_predictions(X):
            mixture: Any = members[0] if len(members) == 1 else combine(members)
            probs = mixture.depth_log_probs.double().softmax(0).cpu().numpy()
            by_depth.append(self._components(members))
            components.append([part.cpu().numpy() for part in mixture.components()])
        means, stds = self._in_units(components, 1)
        return self._in_units(by_depth, 1), (probs, means, stds)

    def _components(self, members: Sequence[Any]) -> list[Floats]:
        """The means and the noise of each depth; of several members, those of their mixture."""
        pairs = [[part.cpu().numpy() for part in one.components()] for one in members]
        mean = self._by_depth([m for m, _ in pairs])
        if len(pairs) == 1:
            return [mean, pairs[0][1]]
        squares = self._by_depth([m**2 + s**2 for m, s in pairs])
        return [mean, np.sqrt(np.maximum(squares - mean**2, 0))]

    def _in_units(self, pieces: Iterable[Sequence[Floats]], axis: int) -> list[Floats]:
        """Means and, where they are given, standard deviations of all rows in the units of y."""
        means, *stds = (np.concatenate(part, axis) for part in zip(*pieces, strict=True))
        scaling = self.target_scaling_
        return [self._shaped(v) for v in (scaling.undo(means), *(s * scaling.scale for s in stds))]

    def _shaped(self, values: Array) -> Floats:
        """Without the last axis, target, if y had none."""
        return values[..., 0] if self._single_target else values

    def _check(self, X: Any, y: Any, reset: bool = True, min_rows: int = 2) -> tuple[Any, Array]:
        check_targets(y)
        check_numbers(y)
        x, targets = validate(self, X, y, reset, min_rows, multi_output=True, y_numeric=True)
        return x, np.asarray(targets, dtype=np.float64)

    def _coded(self, y: Array) -> Array:
        columns = y.reshape(len(y), -1)
        if columns.shape[1] != self._num_targets:
            raise ValueError(f"y has {columns.shape[1]} targets, {self._num_targets} before")
        return columns

    def _scalings(self, train: WeightedRows) -> Scalings:
        targets = Scaling.of(train.y, train.weights, self.standardize_target)
        return Scalings(super()._scalings(train).inputs, targets)

    def _close(
        self, models: Any, scalings: Scalings, learnt: Any, held: Any, own: bool, before: Any
    ) -> Any:
        seconds = None if self.time_limit is None else _SHARE * self.time_limit
        refit = own and not self.warm_start
        return close(models, scalings, learnt, held, seconds, refit, before)

    @torch.no_grad()
    def _judge(self, held: HeldOutPredictions | None) -> None:
        self.conformal_scores_: Floats | None = None
        self.conformal_shares_: Floats | None = None
        self.levels_: list[interval_levels.Levels | None] = [None] * self._num_targets
        if held is None or not isinstance(self.model_.likelihood.single, Gaussian):
            return
        # Noise was widened for the sake of rows other than these, which must not take it back.
        wider = cautious(held) if self.calibrate else 1.0
        found = _mixture(held)
        weighted: list[Floats] = [_distances(found, held, wider), held.rows.weights]
        if held.heavy is not None:
            # These have been learnt from, and predictions of a further row like them are as wide.
            counts = np.append(held.heavy.rows.weights, held.light)
            weighted += [_distances(_mixture(held.heavy), held.heavy, wider), counts]
        self.conformal_scores_, self.conformal_shares_ = conformal.kept_scores(*weighted)
        if self.calibrate:
            y = held.tensors[1]
            means, scales = (part.double() for part in found.components())
            z = (y.to(means) - means) * (wider / scales)
            q = found.depth_log_probs.double().softmax(0)
            cdf = torch.tensordot(q, torch.special.ndtr(z), 1).cpu().numpy()
            self.levels_ = [interval_levels.find_levels(one, held.rows.weights) for one in cdf.T]

    def _describe_targets(self) -> dict[str, Any]:
        kept, shares = self.conformal_scores_, getattr(self, "conformal_shares_", None)
        return {
            "conformal_scores": None if kept is None else kept.tolist(),
            "conformal_shares": None if shares is None else shares.tolist(),
            "levels": [None if one is None else one.held for one in self.levels_],
            "target_scaling": self.target_scaling_.to_dict(),
            "single_target": self._single_target,
            **saved(self),
        }

    def _rebuild_targets(self, described: dict[str, Any], where: str) -> None:
        self._shares = Shares.from_dict(described.get("shares"), f"{where}.shares")
        scaling = described.get("target_scaling")
        center = scaling.get("center") if isinstance(scaling, dict) else None
        columns = len(center) if isinstance(center, list) else 0
        likelihood = self.model_.likelihood.single
        outputs = getattr(self.model_.layers, "out_features", 0)
        if isinstance(likelihood, Gaussian):
            columns = outputs // likelihood.noise.outputs_per_target or columns
        elif isinstance(likelihood, ClassLikelihood):
            raise FileError(f"a {type(likelihood).__name__} predicts classes, a regressor numbers")
        place = f"{where}.target_scaling"
        self.target_scaling_ = Scaling.from_dict(scaling, columns, place)
        self._num_targets = columns
        kept = described.get("conformal_scores")  # files of earlier versions have none
        self.conformal_scores_ = conformal.read(kept, columns, f"{where}.conformal_scores")
        shares, place = described.get("conformal_shares"), f"{where}.conformal_shares"
        self.conformal_shares_ = conformal.read(shares, columns, place, most=1.0)
        if shares is not None and (kept is None or len(kept) != len(shares)):
            raise FileError(f"the field {place} should be one for each score")
        place = f"{where}.levels"
        self.levels_ = interval_levels.read(described.get("levels"), columns, place)
        self._single_target = flag(described.get("single_target"), f"{where}.single_target")
        if self._single_target and columns != 1:
            raise FileError(f"the field {where}.single_target is true, there are {columns} targets")

    def _default_likelihood(self, size: int) -> Likelihood:
        balance = preset(self.preset).balance
        if balance is None or isinstance(self.layers, Layers):  # whose heads give the means
            return Gaussian(LearntNoise(num_targets=size))
        return BalancedGaussian(balance, num_targets=size)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _mixture(held: HeldOutPredictions) -> GaussianPrediction:
    """Of rows, over depths and members."""
    found = combine(held.members)
    assert isinstance(found, GaussianPrediction)
    return found


def _distances(found: GaussianPrediction, held: HeldOutPredictions, wider: float) -> Floats:
    """Scores of rows for conformal intervals, `(rows, target)`, σ made narrower by a factor."""
    mean, std = (part.double().cpu().numpy() for part in (found.mean, found.variance.sqrt()))
    return conformal.distances(held.tensors[1].numpy(), mean, std / wider)


def _moments(prediction: GaussianPrediction) -> tuple[Floats, Floats]:
    """Mean and standard deviation of a mixture, both `(rows, target)`."""
    return prediction.mean.cpu().numpy(), prediction.variance.sqrt().cpu().numpy()
