"""Early exits: rows that are sure are not computed any further.

The one place that says when a mixture over depths is sure: predictions, generation and estimators
ask it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unbounded import trees
from unbounded.layers.base import Layers, Stack
from unbounded.likelihoods import Likelihood


@dataclass(frozen=True)
class EarlyExit:
    """When a row leaves.

    Let S_ℓ(c) = Σ_{k≤ℓ} q(k) p(c; Ω_k) and Q_ℓ = Σ_{k≤ℓ} q(k). A row leaves at the first depth ℓ
    where some answer c has S_ℓ(c) / Q_ℓ ≥ `level`: the depths so far, as a mixture of their own,
    are that sure. Of several labels, or tokens, all must be.

    Attributes:
        level: above 0; at 1 no row leaves before the last depth.
        bounded: ask for S_ℓ(c) ≥ `level` instead. Whatever deeper layers say, the mixture of all
            depths then gives c at least that, and what is returned is within 1 − `level` of it in
            total variation. Rows leave later: not before Q_ℓ ≥ `level`.
    """

    level: float
    bounded: bool = False

    def __post_init__(self) -> None:
        level = self.level
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level <= 1:
            raise ValueError(f"an exit must be above 0 and at most 1, got {level!r}")

    @classmethod
    def of(cls, exit: "float | EarlyExit") -> "EarlyExit":
        """The exit itself, or the one of this level."""
        return exit if isinstance(exit, EarlyExit) else cls(exit)

    def is_sure(
        self, mixture: "RunningMixture", likelihood: Likelihood, counts: Tensor | None = None
    ) -> Tensor:
        """Whether each row may leave, `(batch,)`; places that do not count have no say."""
        total, mass = mixture.log_total, mixture.log_mass
        assert total is not None
        assert mass is not None
        if self.level == 1:
            return torch.zeros(total.shape[0], dtype=torch.bool, device=total.device)
        if not self.bounded:
            total, mass = mixture.log_probs, torch.zeros_like(mass)
        if counts is not None:
            total = torch.where(counts[..., None], total, 0.0)
        return likelihood.verdict(total.exp(), mass.exp())[1] >= self.level


class RunningMixture:
    """Σ_{k≤ℓ} q(k) p(·; Ω_k), one depth after another, in log space."""

    def __init__(self) -> None:
        self.log_total: Tensor | None = None  # log S_ℓ, (batch, …)
        self.log_mass: Tensor | None = None  # log Q_ℓ, broadcastable to it

    def add(self, log_q: Tensor, log_probs: Tensor) -> None:
        """The next depth: log q(ℓ), broadcastable, and log p(·; Ω_ℓ), `(batch, …)`."""
        part = log_q + log_probs
        if self.log_total is None or self.log_mass is None:
            self.log_total, self.log_mass = part, log_q
            return
        self.log_total = torch.logaddexp(self.log_total, part)
        self.log_mass = torch.logaddexp(self.log_mass, log_q)

    @property
    def log_probs(self) -> Tensor:
        """log S_ℓ − log Q_ℓ: the mixture of the depths so far, `(batch, …)`."""
        assert self.log_total is not None
        assert self.log_mass is not None
        return self.log_total - self.log_mass

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the rows, where one q(ℓ) holds for all of them."""
        assert self.log_total is not None
        self.log_total = self.log_total[rows]


@dataclass(frozen=True)
class EarlyPrediction:
    """What rows predict that left as soon as they were sure.

    Attributes:
        likelihood: p(y; Ω).
        log_probs: log-probabilities of classes `(batch, class)`, of labels `(batch, label)`, or of
            tokens `(batch, time, token)`, by the depths that were run.
        depths: how many layers were run for each row, `(batch,)`.
    """

    likelihood: Likelihood
    log_probs: Tensor
    depths: Tensor

    @property
    def probs(self) -> Tensor:
        """The probabilities, none above 1, whatever rounding did."""
        return self.log_probs.exp().clamp(max=1.0)

    @property
    def classes(self) -> Tensor:
        """The most probable class, label or token: `(batch, …)`."""
        return self.likelihood.verdict(self.probs, self.log_probs.new_ones(()))[0]


def running_mixtures(log_q: Tensor, log_probs: Tensor) -> Iterator[RunningMixture]:
    """The mixture of the depths so far, after each of them; one object that goes on.

    Args:
        log_q: log q(ℓ), `(depth,)`.
        log_probs: log p(·; Ω_ℓ), `(depth, batch, …)`.
    """
    mixture = RunningMixture()
    for each_q, each in zip(log_q, log_probs, strict=True):
        mixture.add(each_q, each)
        yield mixture


def left_early(
    likelihood: Likelihood,
    log_q: Tensor,
    log_probs: Tensor,
    exit: float | EarlyExit,
    first: int = 1,
) -> EarlyPrediction:
    """What `predict_early` would say, from what all depths have said already: nothing is saved.

    Args:
        likelihood: of classes, labels or tokens.
        log_q: log q(ℓ), `(depth,)`.
        log_probs: log p(·; Ω_ℓ), `(depth, batch, …)`.
        exit: when a row leaves.
        first: the depth that comes first.
    """
    check(likelihood)
    rule, last = EarlyExit.of(exit), first + len(log_q) - 1
    found = torch.empty_like(log_probs[0])
    depths = torch.zeros(len(found), dtype=torch.int64, device=found.device)
    for depth, mixture in enumerate(running_mixtures(log_q, log_probs), first):
        leaves = depths == 0
        if depth < last:
            leaves &= rule.is_sure(mixture, likelihood)
        found[leaves], depths[leaves] = mixture.log_probs[leaves], depth
    return EarlyPrediction(likelihood, found, depths)


def check(likelihood: Likelihood) -> None:
    """A ValueError if predictions of this likelihood have no answer to be sure of."""
    if not likelihood.has_verdicts:
        raise ValueError(
            f"exit is for classes, labels and tokens mixed by token: {likelihood.described} has no "
            "probability of an answer that could be sure; predict without exit, or freeze(depth=…)"
        )


def predict_early(
    stack: Stack,
    layers: Layers,
    likelihood: Likelihood,
    log_q: Tensor,
    x: trees.Tree,
    exit: float | EarlyExit,
) -> EarlyPrediction:
    """The mixture over depths, each row only as deep as it takes to be sure.

    Rows that leave are gathered out: no deeper layer or head sees them.

    Args:
        stack: the layers and heads of a pass.
        layers: that they are of.
        likelihood: of classes, labels or tokens.
        log_q: log q(ℓ) of the heads' depths, `(depth,)`.
        x: inputs, `(batch, …)`.
        exit: when a row leaves.
    """
    check(likelihood)
    rule, axis = EarlyExit.of(exit), layers.rows_axis
    heads = list(stack.heads) * (len(log_q) if len(stack.heads) == 1 else 1)
    rows = torch.arange(trees.num_rows(x), device=trees.first(x).device)
    depths, mixture = torch.zeros_like(rows), RunningMixture()
    found: Tensor | None = None
    state: Any = x
    given, counts = stack._replace(context=layers.context(x)), layers.counts(x)
    for depth, layer in enumerate(stack.hidden, 1):
        state = layer(state, *given.given(layer))
        if depth < stack.first:
            continue
        head = heads[depth - stack.first]
        mixture.add(log_q[depth - stack.first], _log_probs(likelihood, head, state, given))
        probs = mixture.log_probs
        if found is None:
            found = torch.empty_like(probs)
        leaves = torch.ones_like(rows, dtype=torch.bool)
        if depth < len(stack.hidden):
            leaves = rule.is_sure(mixture, likelihood, counts)
        found[rows[leaves]], depths[rows[leaves]] = probs[leaves], depth
        stay = (~leaves).nonzero()[:, 0]
        if not len(stay):
            break
        if len(stay) < len(rows):
            rows, state, x = rows[stay], state.index_select(axis, stay), trees.rows(x, stay)
            mixture.keep(stay)
            given, counts = stack._replace(context=layers.context(x)), layers.counts(x)
    assert found is not None
    return EarlyPrediction(likelihood, found, depths)


def _log_probs(likelihood: Likelihood, head: Any, state: Tensor, given: Stack) -> Tensor:
    """log p(·; Ω_ℓ) of one depth, of members their mixture: `(batch, …)`."""
    outputs: Tensor = head(state, *given.given(head))
    outputs = (outputs.float() if outputs.element_size() < 4 else outputs)[None]
    likelihood.check_outputs(outputs)
    alone: Any = likelihood.predict(outputs, outputs.new_zeros(1))
    log_probs: Tensor = alone.log_probs
    return log_probs
