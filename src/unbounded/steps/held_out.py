"""A depth that settles: q(ℓ) goes where held-out rows say that layers are worth something."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.depth import TruncatedNormal
from unbounded.depth.quantiles import inverse_softplus_tensor
from unbounded.schema import FileError
from unbounded.steps.depth_rules import DepthRule

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.objective import Gradient

_LITTLE = 1e-3  # depths with less mass are hardly trained, so what they score says little
_PLACES = (-20.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0, 20.0)  # in steps of the place
_SPREADS = (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)  # in steps of the log spread
_FARTHEST = 4.0  # layers from the place to the farthest candidate
_SURE = 3.0  # standard errors above guessing from which on something generalises
_TRAINING_DOUBT = 0.2  # of a standard error, where training rows have to do
_SHORTEST_MEMORY = 64.0  # steps
_FEWEST_LOOKS = 4.0  # that are remembered, however long an epoch is
_STILL = 0.25  # layers by which E[ℓ] may move and still be at rest
_EARLIEST = 500.0  # steps between two checks of rest, at least

# Places in the rule's state: steps since the last look; drift; whether held-out rows say something;
# looks in all; E[ℓ] and steps at the last check of rest; whether q rests; steps in all.
_SINCE, _DRIFT, _GENERALISES, _LOOKS, _MEAN, _CHECKED, _RESTS, _TOTAL = range(8)


class HeldOutAscent(DepthRule):
    """Coordinate ascent of q(ℓ; μ, s) on what each layer is worth on rows it was not fitted to.

    Training likelihood rises with almost every layer, so a rule that looks at training rows alone
    goes on growing. After each epoch this one looks at the validation set. Let

        r_iℓ = log ½[p(y_i; Ω_ℓ(x_i)) + p₀(y_i)]

    be the score of a forecaster who trusts depth ℓ or guesses (p₀ knows the targets' frequencies
    alone), each with probability ½: like the log score, but no single row can decide everything.
    With running means over the last steps (a share of those so far, `memory`), the gain of layer ℓ
    is g_ℓ = mean_i(r_iℓ − r_iℓ₋₁), known up to its standard error e_ℓ. Between epochs μ and s take
    a step towards the maximum over members near by of

        Σ_ℓ q(ℓ) U_ℓ + T·H(q),   U_ℓ = Σ_{k≤ℓ} [n(g_k − price·e_k) − floor],   T = 1 + caution·d.

    So a layer has to be worth more than its noise and `floor` nats on the n held-out rows, or q
    goes without it; where nothing is to be gained, depth falls. H is the entropy, and d how many
    nats the score has drifted by within the memory: as long as the network learns quickly, the
    gains of a moment ago say little, T is high and q is wide; all depths learn, and the shallow
    ones can show what they are able to. When learning slows down, q narrows by itself.

    While no depth is better than guessing on held-out rows, they cannot tell what layers are worth.
    Gains on training rows stand in until something generalises: a network that stayed shallow
    for want of evidence would never produce any.

    It rests when E[ℓ] has moved by less than a quarter of a layer while the steps so far have grown
    by half, with little drift: the history's column `depth_settled` is then 1.

    The family must be a `TruncatedNormal`; `fit` needs a `validation` set.

    Args:
        memory: which share of the steps so far the running means remember; 64 steps at least.
        speed: the largest change of μ in a step.
        price: standard errors that are taken off each gain.
        floor: nats that a layer must gain on the held-out rows besides.
        caution: how much wider q is for each nat of drift.
        narrowest: the smallest spread.
        widest: the largest spread that q may grow to. Where further layers neither gain nor lose,
            as those of residual networks, the entropy alone would have q grow without an end for
            as long as the score drifts; by default up to the number of layers that there are.
    """

    needs_held_out = True

    def __init__(
        self,
        memory: float = 0.05,
        speed: float = 0.0125,
        price: float = 1.0,
        floor: float = 3.0,
        caution: float = 4.0,
        narrowest: float = 0.5,
        widest: float = math.inf,
    ):
        if not 0 < memory < 1:
            raise ValueError(f"memory must be a share between 0 and 1, got {memory}")
        if not 0 < speed <= 1:
            raise ValueError(f"speed must be above 0 and at most 1, got {speed}")
        for name, value in (("price", price), ("floor", floor), ("caution", caution)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if not 0.01 <= narrowest < math.inf:
            raise ValueError(f"narrowest must be at least 0.01, got {narrowest}")
        self.memory, self.speed = float(memory), float(speed)
        self.price, self.floor, self.caution = float(price), float(floor), float(caution)
        if not widest >= narrowest:
            raise ValueError(f"widest must be at least narrowest, {narrowest}, got {widest}")
        self.narrowest, self.widest = float(narrowest), float(widest)
        self._sums = _numbers(0)  # of training log-likelihoods since the last look, (depth,)
        self._train = _numbers(0)  # their running means
        self._rows = _numbers(0, 0)  # running means of r, (depth, rows)
        self._fast = _numbers(0)  # means of r with a quarter of the memory, (depth,)
        self._seen = _numbers(0)  # looks at each depth since it came into the support
        self._state = _numbers(8)  # single numbers, by the names above

    # Training

    def reserve(self, model: "UDN", depth: int) -> bool:
        """Room for depths 1 … depth; doubles, so it rarely moves."""
        if not isinstance(model.depth, TruncatedNormal):
            raise ValueError(
                "HeldOutAscent moves the place and the spread of a TruncatedNormal; "
                f"{type(model.depth).__name__} has none"
            )
        device = model.anchor.device
        if self._sums.shape[0] >= depth and self._sums.device == device:
            return False
        size = max(32, 2 * depth, self._sums.shape[0])
        for name in ("_sums", "_train", "_fast", "_seen"):
            setattr(self, name, _enlarged(getattr(self, name).to(device), size))
        self._rows = _enlarged(self._rows.to(device), size)
        self._state = self._state.to(device)
        return True

    @torch.no_grad()
    def update(self, gradient: "Gradient") -> None:
        """Add up what each depth explains of the training rows."""
        first, last, _ = gradient.posterior
        self._sums[first - 1 : last] += gradient.log_lik.double()
        self._state[_SINCE] += 1

    # Between epochs

    @torch.no_grad()
    def look(
        self, model: "UDN", log_lik: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> None:
        """Bring the running means up to date after an epoch.

        Args:
            model: in training.
            log_lik: log p(y_i; Ω_ℓ(x_i)) of the held-out rows, `(depth, rows)`, from depth 1 on.
            guess: log p₀(y_i), `(rows,)`; None where the likelihood knows no guess.
            weights: how often each row counts, `(rows,)`.
        """
        depth, rows = log_lik.shape
        self.reserve(model, depth)
        if self._rows.shape[1] != rows:
            self._rows = self._rows.new_zeros(self._sums.shape[0], rows)
        scores = log_lik.double()
        if guess is not None:
            scores = torch.logaddexp(scores, guess.double()) - math.log(2)
        steps = self._state[_SINCE].clamp(min=1)
        self._state[_TOTAL] += steps
        memory = (self.memory * self._state[_TOTAL]).clamp(min=_SHORTEST_MEMORY)
        memory = torch.maximum(memory, _FEWEST_LOOKS * steps)
        self._seen[depth:] = 0  # who leaves the support comes back as new
        seen = self._seen[:depth].add_(1)

        def towards(kept: Tensor, new: Tensor, memory: Tensor) -> None:
            rate = torch.maximum(steps / memory, 2 / (seen + 1)).clamp(max=1)
            kept[:depth] += (new - kept[:depth]) * rate.view(-1, *[1] * (new.dim() - 1))

        towards(self._rows, scores, memory)
        towards(self._fast, _mean(scores, weights), memory / 4)
        towards(self._train, self._sums[:depth] / steps, memory / 4)
        log_q = model.depth.log_probs()[:depth].double()
        q = log_q.exp() / log_q.exp().sum()
        total = self._total(weights)
        slow = _mean(self._rows[:depth], weights)
        gap = (q * (self._fast[:depth] - slow)).sum().abs() * total
        self._state[_LOOKS] += 1
        rate = torch.maximum(4 * steps / memory, 2 / (self._state[_LOOKS] + 1)).clamp(max=1)
        self._state[_DRIFT] += (gap - self._state[_DRIFT]) * rate
        self._state[_GENERALISES] = self._generalises(slow, q, guess, weights)
        self._check_rest((q * torch.arange(1, depth + 1, device=q.device)).sum())
        self._sums.zero_()

    def _generalises(
        self, slow: Tensor, q: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        """1 if the best depth that is trained beats guessing on held-out rows for sure, else 0."""
        if guess is None:
            return slow.new_ones(())
        best = torch.where(q > _LITTLE, slow, -torch.inf).argmax(0, keepdim=True)
        ahead = self._rows.index_select(0, best)[0] - guess.double()
        mean = _mean(ahead[None], weights)[0]
        error = _standard_error(ahead[None], mean[None], weights)[0]
        return (mean > _SURE * error).double()

    def _check_rest(self, mean: Tensor) -> None:
        """Rest once E[ℓ] has stayed while the steps grew by half, and nothing drifts."""
        is_time = self._state[_TOTAL] > torch.maximum(
            1.5 * self._state[_CHECKED], self._state[_CHECKED] + _EARLIEST
        )
        stays = (mean - self._state[_MEAN]).abs() < _STILL
        calm = (self._state[_DRIFT] < 1) & (self._state[_GENERALISES] > 0)
        self._state[_RESTS] = torch.maximum(self._state[_RESTS], (is_time & stays & calm).double())
        self._state[_MEAN] = torch.where(is_time, mean, self._state[_MEAN])
        self._state[_CHECKED] = torch.where(is_time, self._state[_TOTAL], self._state[_CHECKED])

    @torch.no_grad()
    def settle(self, model: "UDN", weights: Tensor | None) -> None:
        """Move μ and s, by what the last look has seen; weights as there."""
        family = model.depth
        assert isinstance(family, TruncatedNormal)  # see `reserve`
        steps, drift, generalises = (
            self._state[_SINCE].clone(),
            self._state[_DRIFT],
            self._state[_GENERALISES],
        )
        self._state[_SINCE] = 0
        if not bool(steps > 0) or bool(self._state[_RESTS]):  # a host read an epoch
            return
        place, spread = family.mu.detach().double(), family.spread
        known = int((self._seen > 0).sum())
        worth = self._worth(model, known, generalises, weights)
        stride = min(float(steps) * self.speed, _FARTHEST)
        places = (stride * place.new_tensor(_PLACES)).clamp(-_FARTHEST, _FARTHEST)
        stretch = float(steps) * self.speed / 5
        spreads = (stretch * place.new_tensor(_SPREADS)).clamp(-2, 2).exp() * spread
        at_place, at_spread = torch.meshgrid(
            (place + places).clamp(min=0.5), spreads.clamp(min=self.narrowest), indexing="ij"
        )
        at_spread = at_spread.clamp(max=min(max(float(known), spread), self.widest))
        at = {"mu": at_place, "raw_spread": inverse_softplus_tensor(at_spread)}
        size = int(family.end(at, 4 * known + 64).max())
        log_q = family.log_probs_at(at, size)
        q = log_q.exp()
        # Beyond the layers that there are nothing is known: neither gain nor loss.
        value = torch.cat([worth, worth[-1:].expand(max(size - known, 0))])[:size]
        bound = (q * value).sum(-1) - (1 + self.caution * drift) * (q * log_q).sum(-1)
        bound[len(_PLACES) // 2, len(_SPREADS) // 2] += 1e-6  # ties: stay
        best = bound.flatten().argmax()
        new_place = place + (at_place.flatten()[best] - place).clamp(-stride, stride)
        change = (at_spread.flatten()[best] / spread).log().clamp(-stretch, stretch)
        family.put(new_place, (spread * change.exp()).clamp(min=self.narrowest))

    def _worth(
        self, model: "UDN", known: int, generalises: Tensor, weights: Tensor | None
    ) -> Tensor:
        """U_ℓ of the depths that there are, `(known,)`."""
        gains = self._rows[:known].diff(dim=0)
        gain = _mean(gains, weights)
        error = _standard_error(gains, gain, weights)
        training = self._train[:known].diff()
        gain = torch.where(generalises > 0, gain, training)
        doubt = torch.where(generalises > 0, self.price, self.price * _TRAINING_DOUBT)
        net = self._total(weights) * (gain - doubt * error) - self.floor
        q = model.depth.log_probs().exp().double()
        trained = torch.zeros(known, dtype=torch.float64, device=q.device)
        trained[: len(q)] = q[:known]
        net = torch.where(trained[1:] > _LITTLE, net, 0.0)
        return torch.cat([net.new_zeros(1), net.cumsum(0)])

    def _total(self, weights: Tensor | None) -> Tensor | int:
        """n, the number of held-out rows."""
        return self._rows.shape[1] if weights is None else weights.double().sum()

    # The rest

    def columns(self) -> dict[str, float]:
        """What the history keeps: whether q rests."""
        return {"depth_settled": int(self._state[_RESTS])}

    def rest(self) -> None:
        """Leave q where it is from now on."""
        self._state[_RESTS] = 1

    def state(self) -> dict[str, Tensor]:
        """All running means."""
        names = ("sums", "train", "rows", "fast", "seen", "state")
        return {name: getattr(self, f"_{name}") for name in names}

    def check_state(self, state: dict[str, Tensor]) -> None:
        """Means of one length, of finite numbers."""
        super().check_state(state)
        lengths = {len(state[name]) for name in ("sums", "train", "rows", "fast", "seen")}
        if len(lengths) != 1 or state["state"].shape != self._state.shape:
            raise FileError("the tensors of the rule should be of one length")
        for name, value in state.items():
            if not bool(torch.isfinite(value).all()):
                raise FileError(f"the tensor rule.{name} holds numbers that are not finite")
        if bool((state["seen"] < 0).any()) or bool(
            (state["state"][[_SINCE, _DRIFT, _LOOKS, _CHECKED, _TOTAL]] < 0).any()
        ):
            raise FileError("the counts of the rule should be at least 0")

    def load_state(self, model: "UDN", state: dict[str, Tensor]) -> None:
        """Put them back."""
        for name, value in state.items():
            setattr(self, f"_{name}", value.clone().to(model.anchor.device))


def _numbers(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def _enlarged(tensor: Tensor, size: int) -> Tensor:
    """With room for `size` depths; what is there stays."""
    result = tensor.new_zeros(size, *tensor.shape[1:])
    result[: len(tensor)] = tensor
    return result


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Over the rows: `(depth, rows)` → `(depth,)`."""
    if weights is None:
        return values.mean(-1)
    weights = weights.double()
    return values @ weights / weights.sum()


def _standard_error(values: Tensor, mean: Tensor, weights: Tensor | None) -> Tensor:
    """Of such a mean: `(depth,)`."""
    squares = (values - mean[:, None]) ** 2
    if weights is None:
        return (squares.mean(-1) / max(values.shape[-1] - 1, 1)).sqrt()
    weights = weights.double()
    return (squares @ weights**2).sqrt() / weights.sum()
