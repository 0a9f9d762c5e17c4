"""Noise and certainty as held-out rows show them, not as the rows that were learnt from."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.estimators import nearness
from unbounded.estimators.rows import Array, Scalings, WeightedRows, is_classes, rows_at_once
from unbounded.estimators.spread import Errors, find_bend
from unbounded.layers.convolutional import PooledLinear
from unbounded.layers.kernels import KernelHead
from unbounded.layers.trunk import MemberHead
from unbounded.likelihoods import (
    Gaussian,
    LabelPrediction,
    LearntNoise,
    MultiLabel,
    Prediction,
    ScaledInputNoise,
)
from unbounded.likelihoods.categorical import ClassLikelihood, ClassPrediction
from unbounded.likelihoods.gaussian import GaussianPrediction, Noise
from unbounded.model import UDN
from unbounded.predictive import combine, predict

_MOST_ROWS = 20_000  # more say no more of a single number
_MOST_LEARNT = 2_000  # rows that were learnt from: enough for a trend
_DOUBT = 0.5  # standard deviation of the factor's logarithm before any row is seen
_FURTHEST = 3.0  # the factor's logarithm lies within ± this
_LINEAR = (KernelHead, MemberHead, PooledLinear)  # heads with outputs in proportion to `_weights`
_GOLDEN = (math.sqrt(5) - 1) / 2


class HeldOutPredictions:
    """What trained models say of held-out rows, which go through the networks once.

    Predictions of numbers hold outputs and the likelihood, so that they stay true when noise is
    calibrated; those of classes are of no use once the heads are changed.

    Args:
        models: the members.
        scalings: of the rows.
        rows: that were not learnt from; there may be none.
        learnt: rows that were, of which some are looked at; None if they are not at hand.
        heavy: those of them that are too heavy to be held out; None without any.
    """

    def __init__(
        self,
        models: Sequence[UDN],
        scalings: Scalings,
        rows: WeightedRows,
        learnt: WeightedRows | None = None,
        heavy: WeightedRows | None = None,
    ):
        self.models = models
        self._moved: Tensor | None = None
        self.rows = rows.take(slice(_MOST_ROWS)) if is_classes(rows.y) else rows
        self._scalings, self._learnt, self._heavy = scalings, learnt, heavy

    def improve(self, close: Callable[[Callable[[], object]], Tensor | None]) -> None:
        """Let models be improved before they are asked for held-out rows.

        Args:
            close: does so, calls what it is given just before models remember rows, and says by how
                much the means of these rows move as each of them is learnt from, `(rows, target)`:
                they are judged as if each had not been. None if models remember no rows.
        """
        self._moved = close(self._ask_learnt)

    def _ask_learnt(self) -> None:
        """Ask rows that were learnt from while models do not know them by heart."""
        if self.learnt is not None and isinstance(_noise(self.models[0]), LearntNoise):
            _ = self.learnt.members

    @cached_property
    def heavy(self) -> "HeldOutPredictions | None":
        """The same of rows that are too heavy to be held out."""
        if self._heavy is None or not len(self._heavy.x):
            return None
        return HeldOutPredictions(self.models, self._scalings, self._heavy)

    @property
    def light(self) -> float:
        """How often all other rows count, held out or learnt from."""
        heavy = 0.0 if self._heavy is None else self._heavy.weights.sum()
        learnt = 0.0 if self._learnt is None else self._learnt.weights.sum()
        return float(self.rows.weights.sum() + learnt - heavy)

    @cached_property
    def learnt(self) -> "HeldOutPredictions | None":
        """The same of rows that were learnt from, at equal distances."""
        if self._learnt is None:
            return None
        every = -(-len(self._learnt.x) // _MOST_LEARNT)
        some = self._learnt.take(slice(None, None, every))
        return HeldOutPredictions(self.models, self._scalings, some)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and weights, as the networks see them."""
        return self._scalings.tensors(self.rows, self.models[0])

    @cached_property
    def members(self) -> list[Prediction]:
        """The prediction of each."""
        rows = rows_at_once(self.models[0])
        found = [predict(model, self.tensors[0], rows) for model in self.models]
        if self._moved is None:
            return found

        def as_before(outputs: Tensor) -> Tensor:
            assert self._moved is not None
            moved = self._moved[: len(self.rows.x)]
            return outputs - F.pad(moved, (0, outputs.shape[-1] - moved.shape[1])).to(outputs)

        return [replace(one, outputs=as_before(one.outputs)) for one in found]


@torch.no_grad()
def calibrate(held: HeldOutPredictions) -> float:
    """Multiply the noise, or the temperature of the classes, by what fits held-out rows best.

    A network that fits its training rows closely takes the rest for noise, and is too sure of
    itself on others. One factor c for all members makes the held-out log-likelihood as high as can
    be: σ becomes c·σ, or class probabilities p^{1/c} (temperature scaling, Guo et al., 2017: the
    heads, which are linear, are divided by c). Few rows say little of c, so that log c is N(0, ½²)
    beforehand. Means and the most probable classes of a depth stay. Before that, σ is bent along
    the mean where these rows show, or confirm of those that were learnt from, that errors grow or
    shrink with it.

    The same rows have chosen the epoch, and fit it better than others would: of few rows the most
    likely σ is too small. So σ goes up by one standard error of log c, 1/√(2n) for n rows: about
    what the choice of the epoch gains on them (docs/tables.md has figures).

    Returns:
        c; 1 where the models have no such number to change.
    """
    models = held.models
    apply = _change(models, is_classes(held.rows.y))
    if apply is None or not len(held.rows.x):
        return 1.0
    device = models[0].anchor.device
    y = held.tensors[1][:_MOST_ROWS].to(device)
    weights = held.rows.weights[:_MOST_ROWS]
    members = [replace(one, outputs=one.outputs[:, :_MOST_ROWS]) for one in held.members]
    if isinstance(_noise(models[0]), LearntNoise):
        straighten(models)
        seen, learnt = _errors(members, y, weights), None
        if held.learnt is not None:
            target = held.learnt.tensors[1].to(device)
            learnt = _errors(held.learnt.members, target, held.learnt.rows.weights)
        _bend(models, seen, learnt)
    prediction = combine(members)
    count = torch.from_numpy(weights).to(device).double()
    log_factor = _log_factor(prediction, y, count)
    if isinstance(prediction, GaussianPrediction):
        log_factor += caution(float(count.sum()) * y[0].numel())
    factor = math.exp(log_factor)
    apply(factor)
    return factor


@torch.no_grad()
def temper(model: UDN, prediction: ClassPrediction, y: Tensor) -> float:
    """Divide the heads of a model of classes by the temperature that fits held-out rows best.

    Args:
        model: whose heads are linear.
        prediction: of rows that it has not learnt from.
        y: their classes, `(rows,)`.

    Returns:
        the temperature c, as of `calibrate`; 1 where the heads cannot be divided.
    """
    cool = _change([model], of_classes=True)
    if cool is None:
        return 1.0
    once = torch.ones(len(y), dtype=torch.float64, device=y.device)
    factor = math.exp(_log_factor(prediction, y, once))
    cool(factor)
    return factor


def _log_factor(prediction: Prediction, y: Tensor, count: Tensor) -> float:
    """log c at which rows, each of which counts so often, are most likely."""
    each = _log_likelihood(prediction, y)

    def score(log_factor: float) -> float:
        gained = float(count @ each(math.exp(log_factor)))
        return gained - log_factor**2 / (2 * _DOUBT**2)

    return _highest(score, -_FURTHEST, _FURTHEST)


def forget_judges(models: Sequence[UDN]) -> None:
    """Take back all that an earlier training has from rows that are to judge again."""
    straighten(models)
    nearness.forget_judges(models)


def straighten(models: Sequence[UDN]) -> None:
    """Take away the bends that an earlier training has left in the noise."""
    for noise in map(_noise, models):
        if isinstance(noise, LearntNoise):
            noise.bend(())


def _noise(model: UDN) -> Noise | None:
    """Of a model of numbers."""
    likelihood = model.likelihood.single
    return likelihood.noise if isinstance(likelihood, Gaussian) else None


def _errors(members: Sequence[Prediction], y: Tensor, weights: Array) -> list[Errors]:
    """How far rows are off, for each target."""
    found = combine(members)
    assert isinstance(found, GaussianPrediction)
    means, deviations = found.mean.double(), found.variance.double().sqrt()
    z = (y.double() - means) / deviations
    columns = zip(means.T.cpu().numpy(), z.T.cpu().numpy(), strict=True)
    return [Errors(mean, one, weights) for mean, one in columns]


def _bend(models: Sequence[UDN], held: list[Errors], learnt: list[Errors] | None) -> None:
    """Let σ follow the mean where rows show that it does (`find_bend`)."""
    noises: list[Any] = [model.likelihood.single.noise for model in models]
    others: Sequence[Errors | None] = [None] * len(held) if learnt is None else learnt
    bends = [find_bend(own, other) for own, other in zip(held, others, strict=True)]
    if any(bend is not None for bend in bends):
        for noise in noises:
            noise.bend(bends)


def caution(observed: float) -> float:
    """By how much `calibrate` raises log σ: a standard error of log c, from so many numbers."""
    # None of them counts for less than one.
    return 1 / math.sqrt(2 * max(observed, 1.0))


def cautious(held: HeldOutPredictions) -> float:
    """What `calibrate` has multiplied σ by for the sake of caution alone."""
    rows = held.rows
    if not len(rows.x) or _change(held.models, is_classes(rows.y)) is None:
        return 1.0
    weights, targets = rows.weights[:_MOST_ROWS], rows.y[:1].size
    return math.exp(caution(float(weights.sum()) * targets))


def _change(models: Sequence[UDN], of_classes: bool) -> Callable[[float], None] | None:
    """What brings a factor into the models; None where there is nothing to bring it into."""
    likelihood = models[0].likelihood.single
    if of_classes != isinstance(likelihood, ClassLikelihood | MultiLabel):
        return None  # a likelihood of the wrong kind: predictions will say so
    if isinstance(_noise(models[0]), LearntNoise | ScaledInputNoise):
        noises: list[Any] = [_noise(model) for model in models]

        def widen(factor: float) -> None:
            for noise in noises:
                noise.log_scale += math.log(factor)
                if isinstance(noise, ScaledInputNoise):
                    noise.floor *= factor

        return widen
    if of_classes:
        # Some networks have one head for all depths.
        heads = {_last(head) for model in models for head in model.network.heads.values()}
        linear = [h for h in heads if type(h) is nn.Linear or isinstance(h, _LINEAR)]
        if len(linear) == len(heads):

            def cool(factor: float) -> None:
                for part in (part for head in linear for part in _weights(head)):
                    part.div_(factor)

            return cool
    return None


def _weights(head: nn.Module) -> Iterator[Tensor]:
    """All that the outputs of a head are in proportion to."""
    yield from head.parameters()
    if isinstance(head, KernelHead):
        yield from (head.values, head.added, head.added_bias)


def _last(head: nn.Module) -> nn.Module:
    """What gives the outputs."""
    return head[-1] if type(head) is nn.Sequential else head


def _log_likelihood(prediction: object, y: Tensor) -> Callable[[float], Tensor]:
    """c ↦ the log-likelihood of each row if the factor is c, `(rows,)`."""
    if isinstance(prediction, GaussianPrediction):
        means, scales = (part.double() for part in prediction.components())
        log_q = prediction.depth_log_probs.double()[:, None]
        squares = ((y.double() - means) / scales).square().sum(-1)  # (depth, rows)
        offset = log_q - scales.log().sum(-1)
        targets = means.shape[-1]

        def gaussian(factor: float) -> Tensor:
            each = offset - targets * math.log(factor) - squares / (2 * factor**2)
            return each.logsumexp(0)

        return gaussian
    if isinstance(prediction, LabelPrediction):
        signed = prediction.outputs.double() * (2 * y.double() - 1)
        label_log_q = prediction.depth_log_probs.double()[:, None]
        return lambda factor: (label_log_q + F.logsigmoid(signed / factor).sum(-1)).logsumexp(0)
    assert isinstance(prediction, ClassPrediction)
    by_class = prediction.log_probs_by_depth.double()
    log_q = prediction.depth_log_probs.double()[:, None]
    index = y.long().expand(len(by_class), -1)[..., None]

    def classes(factor: float) -> Tensor:
        own = (by_class / factor).log_softmax(-1).gather(-1, index)[..., 0]
        return (log_q + own).logsumexp(0)

    return classes


def _highest(score: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one peak is highest, by golden sections."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    scores = [score(place) for place in inner]
    for _ in range(30):
        if scores[0] >= scores[1]:
            high = inner[1]
            inner = [high - _GOLDEN * (high - low), inner[0]]
            scores = [score(inner[0]), scores[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + _GOLDEN * (high - low)]
            scores = [scores[1], score(inner[1])]
    return (low + high) / 2
