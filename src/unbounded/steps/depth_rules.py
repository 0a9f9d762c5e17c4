"""How λ moves: with the optimiser, as in the paper, or by an ascent of its own."""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unbounded import elbo
from unbounded.depth import RateFamily
from unbounded.schema import FileError

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.objective import Gradient


class DepthRule(ABC):
    """Moves λ after each evaluation of the gradient, in place of the optimiser.

    By tensor operations alone, so that a CUDA graph can hold them.
    """

    needs_held_out: ClassVar[bool] = False
    """Whether it looks at the validation set: see `look` and `settle`."""
    takes_many: ClassVar[bool] = False
    """Whether its tensors can have an axis of models that train as one computation."""
    takes_slopes: ClassVar[bool] = True
    """Whether `update` looks at the gradient of 𝓛 in λ, which costs a pass through q(ℓ; λ)."""
    slack: float = 1.0
    """Standard errors by which an epoch with another depth may score lower than the best one, and
    still take its place."""

    def check(self, model: "UDN") -> None:  # noqa: B027
        """A ValueError if the rule cannot move this model's q."""

    def begin(self) -> None:  # noqa: B027
        """Forget what was seen of other models: a `fit` begins. What rests goes on resting."""

    @abstractmethod
    def reserve(self, model: "UDN", depth: int) -> bool:
        """Make room for depths 1 … depth; whether tensors have moved."""

    @abstractmethod
    def update(self, gradient: "Gradient") -> None:
        """Look at a batch and move λ."""

    def move(self, gradient: "Gradient") -> None:
        """`update`, and leave the optimiser no gradient to move λ by."""
        self.update(gradient)
        for parameter in gradient.model.depth.parameters():
            parameter.grad = None

    def is_due(self, epoch: int) -> bool:
        """Whether it looks at the validation set after so many epochs, and moves λ before the next.

        Rows of a stream are others each time: they are looked at after every epoch.
        """
        return True

    def look(  # noqa: B027
        self, model: "UDN", log_lik: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> None:
        """Look at the held-out rows after an epoch, and move nothing: its scores are not yet kept.

        Args:
            model: in training.
            log_lik: log p(y_i; Ω_ℓ(x_i)), `(depth, rows)`.
            guess: log p₀(y_i) of a guess that ignores x, `(rows,)`, where the likelihood has one.
            weights: how often each row counts, `(rows,)`.
        """

    def look_at_fresh(
        self, model: "UDN", log_lik: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> None:
        """The same where each look is at other rows, as of a stream."""
        self.look(model, log_lik, guess, weights)

    def settle(self, model: "UDN", weights: Tensor | None) -> None:  # noqa: B027
        """Move λ before an epoch, by what `look` has seen.

        Args:
            model: in training.
            weights: as there; of fresh rows, their mean for each.
        """

    def columns(self) -> dict[str, float]:
        """What the history keeps of the rule."""
        return {}

    def rest(self) -> None:
        """Leave λ where it is from now on, by a tensor that a CUDA graph reads."""
        raise NotImplementedError(f"{type(self).__name__} cannot rest")

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint has to keep."""
        return {}

    def check_state(self, state: dict[str, Tensor]) -> None:
        """A FileError unless `load_state` can take these tensors of a file, which may be any."""
        for name, like in self.state().items():
            value = state[name]
            if value.dtype != like.dtype or value.dim() != like.dim():
                raise FileError(f"the tensor rule.{name} should be {like.dtype}, as the rule's is")

    def load_state(self, model: "UDN", state: dict[str, Tensor]) -> None:  # noqa: B027
        """Put back what `state` gave."""


class RateAscent(DepthRule):
    """Coordinate ascent: λ follows the maximum of 𝓛 over λ, given what each depth is worth now.

    With the weights held fixed, 𝓛(λ) = Σ_ℓ q(ℓ; λ) [n·L_ℓ − KL_ℓ + log p(ℓ) − log q(ℓ; λ)], where
    L_ℓ is the mean log-likelihood of a data point at depth ℓ and KL_ℓ what the weights up to
    depth ℓ cost. The n numbers behind L_ℓ are only seen in batches, so running means over the last
    steps stand for them: of L_ℓ − L_{ℓ−1}, both on the same batch, since only differences count
    and all depths learn together. (Of means of L_ℓ itself those of the youngest depths, which hold
    the latest batches alone, would always look best.) Each step evaluates 𝓛 exactly on some members
    around λ and goes towards the best of them, by at most `speed` in log λ. The members reach
    further than a step: where the truncation m(q) jumps, 𝓛 has small cliffs, at which a
    short-sighted ascent stays for good.

    The optimiser's gradient of 𝓛/n in λ has the same zeros. But it is as large as the differences
    between depths: large in the first epochs, when almost any layer more helps, and next to
    nothing at the end, when the learning rate has gone as well. λ then stays where the first epochs
    left it. Here the speed does not depend on the size of the gradient or on a schedule of
    learning rates, so λ keeps up with what the depths are worth, upwards and downwards.

    A depth that came into the support less than `youth` steps ago counts as good as the deepest
    grown one, its layer as dear as grown ones are on average, and so do depths beyond the support:
    a newborn head predicts badly for a while, a newborn layer has weights that are yet to shrink,
    and λ would draw back from every birth before it could show its worth. As long as nobody is
    grown nothing can be said, and λ stays.

    Args:
        speed: the largest change of log λ in a step.
        memory: how many steps the running mean remembers.
        youth: for how many steps a depth is young; five times `memory` by default.
        weight_cost: whether the KL_ℓ count. Weights in front of a normalisation can be scaled down
            without a change of any output, so of layers made of these the supremum of 𝓛 over their
            scales has KL_ℓ = 0, however large they were born and far they have shrunk since.
            False is the ascent of this supremum.
        reach: how far from λ members are looked at, in log λ.
        candidates: how many of them, odd.
    """

    takes_slopes = False

    def __init__(
        self,
        speed: float = 0.001,
        memory: int = 200,
        youth: int | None = None,
        reach: float = 0.4,
        candidates: int = 33,
        weight_cost: bool = True,
    ):
        if not speed > 0:
            raise ValueError(f"speed must be positive, got {speed}")
        if memory < 1:
            raise ValueError(f"memory must be at least 1, got {memory}")
        if candidates < 3 or candidates % 2 == 0:
            raise ValueError(f"candidates must be an odd number of at least 3, got {candidates}")
        if not reach >= speed:
            raise ValueError(f"reach must be at least the speed, {speed}, got {reach}")
        self.speed, self.reach = float(speed), float(reach)
        self.memory, self.candidates = int(memory), int(candidates)
        self.weight_cost = bool(weight_cost)
        self.youth = 5 * self.memory if youth is None else int(youth)
        if self.youth < self.memory:
            raise ValueError(f"youth must be at least the memory, {memory}, got {youth}")
        self.begin()
        self._pace = torch.ones((), dtype=torch.float64)

    def begin(self) -> None:
        """No depth has been seen."""
        self._gain = self._seen = self._log_prior = self._steps = torch.zeros(0)

    def rest(self) -> None:
        """Leave λ where it is from now on."""
        self._pace.zero_()

    def reserve(self, model: "UDN", depth: int) -> bool:
        """Room for a support of 1 … depth and a margin; doubles, so it rarely moves."""
        if not isinstance(model.depth, RateFamily):
            raise ValueError(
                f"RateAscent compares members of a RateFamily; {type(model.depth).__name__} is none"
            )
        needed = depth + self._margin(depth)
        if self._gain.shape[0] >= needed and self._gain.device == model.anchor.device:
            return False
        self._allocate(model, max(64, 2 * needed))
        return True

    def _allocate(self, model: "UDN", size: int) -> None:
        old, device = self._gain.shape[0], model.anchor.device
        gain, seen = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2))
        gain[:old], seen[:old] = self._gain.to(device), self._seen.to(device)
        self._gain, self._seen = gain, seen
        depths = torch.arange(1, size + 1, device=device)
        self._log_prior = model.depth_prior.log_prob(depths)
        # Close together near λ, so that it comes to rest, and wider apart further away.
        line = torch.linspace(-1, 1, self.candidates, dtype=torch.float64)
        self._steps = (self.reach * line**3).to(device)
        self._pace = self._pace.to(device)

    @torch.no_grad()
    def update(self, gradient: "Gradient") -> None:
        """The running means, then λ."""
        first, last, _ = gradient.posterior
        model, num_data = gradient.model, gradient.num_data
        seen = self._seen[first - 1 : last]
        self._seen[last:].zero_()  # who leaves the support comes back as young
        seen.add_(1)
        grown = seen > self.youth
        # The first depth's is over a depth that nobody looks at.
        gain = self._gain[first:last]
        # Weights that grow with the steps forget how a depth began; then a plain memory.
        rate = (2 / (seen[1:] + 1)).clamp(min=1 / self.memory)
        gain.add_((gradient.log_lik.double().diff() - gain) * rate)
        relative = torch.cat([gain.new_zeros(1), gain.cumsum(0)])  # L_ℓ − L_first
        prices = gradient.hidden_kl.double() * self.weight_cost
        value, price = _as_grown(relative, prices, grown, first)
        cost = elbo.weight_cost(
            price,
            gradient.head_kl.double() * self.weight_cost,
            last - first + 1,
            model.cumulative_heads,
        )
        margin = self._margin(last)
        further = torch.arange(1, margin + 1, dtype=torch.float64, device=gain.device)
        worth = torch.cat(
            [
                num_data * value - cost,
                num_data * value[-1] - cost[-1] - further * price[-1],
            ]
        )
        worth = worth + self._log_prior[first - 1 : last + margin]
        family = model.depth
        assert isinstance(family, RateFamily)  # see `reserve`
        log_q = family.log_probs_at(family.scaled(self._steps.exp()), last + margin)
        log_q = log_q[:, first - 1 :]
        bound = (log_q.exp() * (worth - log_q)).sum(1)
        # Ties go to the middle: where nothing is to be gained λ stays.
        bound[self.candidates // 2] += 1e-9 * bound.abs().max()
        best = self._steps.gather(0, bound.argmax(0, keepdim=True))[0] * grown.any()
        family.scale_rate((best.clamp(-self.speed, self.speed) * self._pace).exp())

    def state(self) -> dict[str, Tensor]:
        """The running means, over how many steps they go, and whether λ rests."""
        return {"gain": self._gain, "seen": self._seen, "pace": self._pace}

    def check_state(self, state: dict[str, Tensor]) -> None:
        """Two means of one length, and a pace."""
        super().check_state(state)
        if state["gain"].shape != state["seen"].shape or len(state["gain"]) < 1:
            raise FileError("the tensors rule.gain and rule.seen should be of one length")
        for name, value in state.items():
            if not bool(torch.isfinite(value).all()):
                raise FileError(f"the tensor rule.{name} holds numbers that are not finite")
        if bool((state["seen"] < 0).any()) or float(state["pace"]) not in (0.0, 1.0):
            raise FileError("rule.seen should be at least 0, rule.pace 0 or 1")

    def load_state(self, model: "UDN", state: dict[str, Tensor]) -> None:
        """Put them back; who was told to rest before goes on resting."""
        # As large as it was: the model may have been deeper than it is now.
        self._gain = self._seen = torch.zeros(0)
        self._allocate(model, state["gain"].shape[0])
        self._gain.copy_(state["gain"])
        self._seen.copy_(state["seen"])
        self._pace.mul_(state["pace"])

    def _margin(self, depth: int) -> int:
        """How far beyond the support the members reach, and the lag of a graph."""
        return 4 + math.ceil(1.2 * depth * math.expm1(self.reach))


def _as_grown(value: Tensor, price: Tensor, grown: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """What each depth is worth and costs, young ones as if they were grown.

    Args:
        value: L_ℓ of the depths first … last, or by how much it exceeds L_first, `(depth,)`.
        price: KL of the layers 1 … last, `(last,)`.
        grown: which depths are grown, `(depth,)`.
        first: the first depth.

    Returns:
        Values, of young depths at least that of the deepest grown one, and prices, of young layers
        at most the mean price of grown ones.
    """
    places = torch.arange(len(value), device=value.device)
    last = torch.where(grown, places, 0).amax(0, keepdim=True)  # the first, if none is grown
    value = torch.where(grown, value, torch.maximum(value, value.gather(0, last)))
    old = torch.cat([grown.new_ones(first - 1), grown])  # layers below the first serve all depths
    usual = (price * old).sum() / old.sum()  # infinite or NaN if none is grown: own prices then
    return value, torch.where(old, price, torch.fmin(price, usual))
