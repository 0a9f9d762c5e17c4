"""A depth that settles: q(ℓ) goes where held-out rows say that layers are worth something."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.depth import Numbers, TruncatedNormal
from unbounded.steps import held_out_rows as over
from unbounded.steps.depth_rules import DepthRule

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.objective import Gradient

_PLACES = (-4.0, -2.0, -1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # layers from the place
_SPREADS = (-0.8, -0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 0.8)  # in the log of the spread
_UNIT = 4.0  # the place up to which strides are as `speed` has them
_SHARE = 0.05  # of what is learnt, that a layer has to explain; `floor` where that is less
_CALM = 0.5  # nats of drift that mean nothing
_TRAINING_DOUBT = 0.2  # of a standard error, where training rows have to do
_SHORTEST_MEMORY = 64.0  # steps
_FEWEST_LOOKS = 4.0  # that are remembered, however long an epoch is
_ENOUGH_LOOKS = 32.0  # within the memory at least, while q rests
_FOR_GOOD = 2.0  # in place of 1 where q is to rest whatever comes
_STILL = 0.05  # of 1 + E[ℓ], by which E[ℓ] and the width of q may change at rest
_EARLIEST = 500.0  # steps for which q has to stay, at least
_ROUSED = 3.0  # times `floor`: nats for which q moves once it rests

# Places in the rule's state: steps since the last look; drift; whether held-out rows say something;
# looks in all; E[ℓ], deviation of ℓ and steps when q was last elsewhere; whether q rests; steps in
# all; nats that the best depth is ahead of guessing; steps that the last look was about, until q
# has moved by it.
_SINCE, _DRIFT, _GENERALISES, _LOOKS, _MEAN, _WIDTH, _ARRIVED, _RESTS, _TOTAL = range(9)
_LEARNT, _AHEAD, _COUNT = 9, 10, 11


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

        Σ_ℓ q(ℓ) U_ℓ − T·KL(q ‖ ρ),   U_ℓ = Σ_{k≤ℓ} [n(g_k − price·e_k) − c],
        T = 1 + caution·(d − ½)₊.

    So a layer has to be worth more than its noise and c nats on the n held-out rows, or q goes
    without it; where nothing is to be gained, depth falls. c is `floor`, or a twentieth of what the
    best depth is ahead of guessing where that is less.

    d is how many nats the depths have drifted apart by within the memory, other than by deeper
    ones pulling ahead (`held_out_rows.behind`). As long as shallow depths catch up, T is high and
    q near the reference ρ, a wide normal, from which it starts: wherever q was before, all of the
    first depths learn, and the shallow ones can show what they are able to. Later q leaves ρ and
    narrows by itself, as in simulated annealing.

    While no depth is better than guessing on held-out rows, they cannot tell what layers are worth.
    Gains on training rows stand in until something generalises: a network that stayed shallow
    for want of evidence would never produce any.

    It rests when q has stayed within 5 % while the steps so far have grown by half: the history's
    column `depth_settled` is then 1. From then on q moves only if it gains 3·`floor` nats by that.

    The family must be a `TruncatedNormal`; `fit` needs a `validation` set.

    Args:
        memory: which share of the steps so far the running means remember; 64 steps and four
            epochs at least.
        speed: the largest change of μ in a step.
        price: standard errors that are taken off each gain.
        floor: nats that a layer must gain on the held-out rows besides.
        caution: how much more ρ counts for each nat of drift.
        reference: place and spread of ρ; the layers' own where it is None.
        narrowest: the smallest spread.
        width: the share of ρ's spread that q keeps where depths are worth the same.
        most: n at most. Gains and their errors are means over all held-out rows; but where these
            are very many, tokens of a stream above all, the least of gains would be worth a layer,
            and the least drift a reason to wait.
    """

    needs_held_out = True
    takes_many = True
    takes_slopes = False

    def __init__(
        self,
        memory: float = 0.05,
        speed: float = 0.0125,
        price: float = 0.5,
        floor: float = 11.0,
        caution: float = 32.0,
        reference: tuple[float, float] | None = None,
        narrowest: float = 0.5,
        most: float = math.inf,
        width: float = 1.0,
    ):
        if not 0 < memory < 1:
            raise ValueError(f"memory must be a share between 0 and 1, got {memory}")
        if not 0 < speed <= 1:
            raise ValueError(f"speed must be above 0 and at most 1, got {speed}")
        at_least_0 = {"price": price, "floor": floor, "caution": caution, "width": width}
        for name, value in at_least_0.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if not 0.01 <= narrowest < math.inf:
            raise ValueError(f"narrowest must be at least 0.01, got {narrowest}")
        if not most >= 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self.memory, self.speed, self.narrowest = float(memory), float(speed), float(narrowest)
        self.price, self.floor, self.caution = float(price), float(floor), float(caution)
        self.most, self.width = float(most), float(width)
        self.reference = None if reference is None else over.checked_reference(reference)
        self._rho: tuple[float, float]  # place and spread of ρ; `check` knows the layers' own
        self._state = over.zeros(1, _COUNT)  # single numbers, by the names above
        self.begin()

    def begin(self) -> None:
        """Forget all models but that q is to rest. Tensors have an axis of members first."""
        self._fresh_rows = False  # whether the rows of this look are seen for the first time
        rests = self._state[:1, _RESTS] == _FOR_GOOD
        self._state = over.zeros(1, _COUNT)
        self._state[:, _RESTS] = _FOR_GOOD * rests
        self._sums = over.zeros(1, 0)  # of training log-likelihoods since the last look, by depth
        # Running means of what each depth adds to the one before. Not of the scores themselves: a
        # depth that is new remembers less, and while scores rise it would look better than it is.
        self._train = over.zeros(1, 0)  # on training rows, by depth
        self._gains = over.zeros(1, 0, 0)  # of r, (member, depth, rows)
        self._fast = over.zeros(1, 0)  # of r with a quarter of the memory, by depth
        self._seen = over.zeros(1, 0)  # looks at each depth since it came into the support

    # One model in training

    def is_due(self, epoch: int) -> bool:
        """Always, until q rests; then 32 times within the memory or more, which grows with it."""
        return self.is_regular(epoch) or not bool(self.rests[0])

    def reserve(self, model: "UDN", depth: int) -> bool:
        """Room for depths 1 … depth; doubles, so it rarely moves."""
        self.check(model)
        device, size = model.anchor.device, self._sums.shape[1]
        if size >= depth and self._sums.device == device:
            return False
        self.make_room(1, max(32, 2 * depth, size), device)
        return True

    @torch.no_grad()
    def update(self, gradient: "Gradient") -> None:
        """Add up what each depth explains of the training rows."""
        first, last, _ = gradient.posterior
        self._sums[0, first - 1 : last] += gradient.log_lik.double()
        self._state[0, _SINCE] += 1

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
        depth = log_lik.shape[0]
        self.reserve(model, depth)
        log_q = model.depth.log_probs().detach()[None, :depth]
        guess, weights = (None if t is None else t[None] for t in (guess, weights))
        self.see(log_lik[None], log_q, guess, weights)

    def look_at_fresh(
        self, model: "UDN", log_lik: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> None:
        """The same where each look is at other rows; a place then has no weight of its own."""
        self._fresh_rows = True
        self.look(model, log_lik, guess, weights)
        self._fresh_rows = False

    @torch.no_grad()
    def settle(self, model: "UDN", weights: Tensor | None) -> None:
        """Move μ and s, by what the last look has seen; weights as there."""
        family = model.depth
        assert isinstance(family, TruncatedNormal)  # see `reserve`
        if self._gains.shape[2] == 0:  # before the first look
            if bool(self.starts[0]):
                family.put(*self._state.new_tensor(self._rho))
            return
        if self._state[0, _AHEAD] == 0:  # no look since it moved
            return
        at = {name: tensor.detach()[None] for name, tensor in family.numbers().items()}
        depth = min(family.max_depth(), self._sums.shape[1])
        weights = None if weights is None else weights[None]
        place, spread = self.moved(family, at, slice(0, 1), depth, weights)
        family.put(place[0], spread[0])

    # Any number of models at once, by tensor operations alone

    def check(self, model: "UDN") -> None:
        """A ValueError if the rule cannot move its q."""
        if not isinstance(model.depth, TruncatedNormal):
            raise ValueError(
                "HeldOutAscent moves the place and the spread of a TruncatedNormal; "
                f"{type(model.depth).__name__} has none"
            )
        self._rho = self.reference or over.checked_reference(model.layers.reference)

    @property
    def rests(self) -> Tensor:
        """1 for each model whose q has settled, `(members,)`."""
        return self._state[:, _RESTS].clamp(max=1)

    @property
    def starts(self) -> Tensor:
        """Whether q is to start from ρ, `(members,)`: what it was before is no evidence."""
        return (self._state[:, _LOOKS] == 0) & (self._state[:, _RESTS] < _FOR_GOOD)

    def is_regular(self, epoch: int) -> bool:
        """Whether those who rest are looked at after so many epochs, too.

        Every 1, 2, 4, 8, … epochs: each interval holds some of the next longer one.
        """
        longest = max(1, int(self.memory * epoch / _ENOUGH_LOOKS))
        return epoch % (1 << (longest.bit_length() - 1)) == 0

    def due(self, regular: Tensor) -> Tensor:
        """Whether each model is to be looked at, `(members,)`; see `is_regular`.

        One that rests moves for much alone, and a look costs as much as a step of a small network.
        """
        return (self.rests == 0) | regular

    def make_room(self, members: int, size: int, device: torch.device, rows: int = 0) -> None:
        """Tensors for so many models, depths and held-out rows; what is there stays."""
        for name in ("_sums", "_train", "_fast", "_seen"):
            setattr(self, name, over.enlarged(getattr(self, name), (members, size), device))
        rows = max(rows, self._gains.shape[2])
        self._gains = over.enlarged(self._gains, (members, size, rows), device)
        self._state = self._state.expand(members, -1).clone().to(device)
        self._steps = torch.tensor(_PLACES, device=device), torch.tensor(_SPREADS, device=device)

    def add(self, log_lik: Tensor, steps: Tensor) -> None:
        """Add a step's mean log-likelihoods `(members, depth)`, of those who make it `(members,)`.

        Depths outside of a member's support are to be 0.
        """
        self._sums[:, : log_lik.shape[1]] += torch.where(steps[:, None], log_lik.double(), 0.0)
        self._state[:, _SINCE] += steps

    @torch.no_grad()
    def see(
        self, log_lik: Tensor, log_q: Tensor, guess: Tensor | None, weights: Tensor | None
    ) -> None:
        """Bring the running means of all members up to date after an epoch.

        Args:
            log_lik: log p(y_i; Ω_ℓ(x_i)), `(members, depth, rows)`.
            log_q: log q(ℓ), `(members, depth)`; depths without mass are as good as not there.
            guess: log p₀(y_i), `(members, rows)`.
            weights: how often each row counts, `(members, rows)`.
        """
        depth, rows = log_lik.shape[1:]
        if self._gains.shape[2] != rows:
            self._gains = over.resized(self._gains, rows)
        state, q = self._state, log_q.double().exp()
        inside = q > 0
        scores, guess = over.scores(log_lik, guess, inside)
        if self._fresh_rows and weights is not None:
            scores = over.evened(scores, weights)
            guess = None if guess is None else over.evened(guess[:, None], weights)[:, 0]
            weights = over.even(weights)
        steps = state[:, _SINCE].clamp(min=1)
        state[:, _TOTAL] += steps
        memory = (self.memory * state[:, _TOTAL]).clamp(min=_SHORTEST_MEMORY)
        memory = torch.maximum(memory, _FEWEST_LOOKS * steps)
        seen = self._seen[:, :depth]
        seen.copy_(torch.where(inside, seen + 1, 0.0))  # who leaves the support comes back as new
        self._seen[:, depth:] = 0

        def towards(kept: Tensor, new: Tensor, memory: Tensor) -> None:
            rate = torch.maximum((steps / memory)[:, None], 2 / (seen + 1)).clamp(max=1) * inside
            kept[:, :depth] += (new - kept[:, :depth]) * rate.view(
                *rate.shape, *[1] * (new.dim() - 2)
            )

        gains = over.added(scores)
        towards(self._gains, gains, memory)
        towards(self._fast, over.mean(gains, weights), memory / 4)
        # q of the averaged weights lags behind, and may have depths that are trained no more.
        trained = self._sums[:, :depth] != 0
        fitted = over.added(self._sums[:, :depth] / steps[:, None])
        towards(self._train, torch.where(trained, fitted, self._train[:, :depth]), memory / 4)
        slow = over.mean(self._gains[:, :depth], weights).cumsum(1)
        count = over.total(self._gains, weights, self.most)
        drift = over.behind(self._fast[:, :depth].cumsum(1) - slow, q) * count
        under_q = (q[..., None] * scores).sum(1, keepdim=True)
        if guess is not None:  # at first everything is new
            learnt = over.mean(under_q - guess[:, None], weights)[:, 0].clamp(min=0) * count
            drift = torch.where(state[:, _LOOKS] == 0, learnt, drift)
        state[:, _LOOKS] += 1
        rate = torch.maximum(4 * steps / memory, 2 / (state[:, _LOOKS] + 1)).clamp(max=1)
        state[:, _DRIFT] += (drift - state[:, _DRIFT]) * rate
        generalises, learnt = over.generalises(
            self._gains[:, :depth], slow, self._train[:, :depth], q, trained, guess, weights
        )
        # Once and for all: who overfits later must not go by training rows again.
        state[:, _GENERALISES] = torch.maximum(state[:, _GENERALISES], generalises)
        state[:, _LEARNT] = learnt * count
        error = over.standard_error(under_q, over.mean(under_q, weights), weights)[:, 0]
        self._check_rest(q, error * count)
        self._sums.zero_()
        state[:, _AHEAD] += state[:, _SINCE]
        state[:, _SINCE] = 0

    def _check_rest(self, q: Tensor, noise: Tensor) -> None:
        """Rest once q has stayed while the steps grew by half, and the score drifts no more."""
        depths = torch.arange(1, q.shape[1] + 1, device=q.device)
        mean = (q * depths).sum(1)
        width = (q * (depths - mean[:, None]) ** 2).sum(1).sqrt()
        state, total, arrived = self._state, self._state[:, _TOTAL], self._state[:, _ARRIVED]
        apart = (mean - state[:, _MEAN]).abs() + (width - state[:, _WIDTH]).abs()
        stays, calm = apart < _STILL * (1 + mean), state[:, _DRIFT] < noise
        long_since = total > torch.maximum(1.5 * arrived, arrived + _EARLIEST)
        rests = stays & calm & long_since & (state[:, _GENERALISES] > 0)
        keeps = stays | (state[:, _RESTS] == _FOR_GOOD)  # who was told to rest, wherever q is
        state[:, _RESTS] = torch.where(keeps, torch.maximum(state[:, _RESTS], rests.double()), 0.0)
        for place, value in ((_MEAN, mean), (_WIDTH, width), (_ARRIVED, total)):
            state[:, place] = torch.where(stays, state[:, place], value)

    @torch.no_grad()
    def moved(
        self, family: TruncatedNormal, at: Numbers, of: slice, depth: int, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """μ and s after what the last look has seen, `(members,)` each.

        Args:
            family: stands for all of these members.
            at: their λ.
            of: which members they are.
            depth: how many depths there are, of the deepest.
            weights: how often each held-out row counts, `(members, rows)`.
        """
        state, place, spread = self._state[of], at["mu"].double(), family.spread_at(at)
        steps = state[:, _AHEAD].clone()
        state[:, _AHEAD] = 0
        temperature = 1 + self.caution * (state[:, _DRIFT] - _CALM).clamp(min=0)
        worth = self._worth(family.log_probs_at(at, depth).exp(), of, weights)
        # Far from depth 1 a layer more or less is little: strides grow with the place.
        pace = steps * self.speed * (place / _UNIT).clamp(min=1)
        stretch = steps * self.speed / 5
        spreads = self._steps[1].exp() * spread[:, None]
        widest = (place / 2).clamp(min=self._rho[1])[:, None]
        near = torch.broadcast_tensors(
            (place[:, None] + self._steps[0]).clamp(min=0.5)[:, :, None],
            spreads.minimum(widest).clamp(min=self.narrowest)[:, None, :],
        )
        at_place, at_spread = (grid.flatten(1) for grid in near)
        bound = self._bound(family, at_place, at_spread, worth, temperature)
        now = bound[:, bound.shape[1] // 2]  # the middle of the grid
        highest, best = bound.max(1)
        to_place, to_spread = (t.gather(1, best[:, None])[:, 0] for t in (at_place, at_spread))
        step = torch.clamp(to_place - place, -pace, pace)
        change = torch.clamp((to_spread / spread).log(), -stretch, stretch)
        new_spread = (spread * change.exp()).clamp(min=self.narrowest)
        least = torch.where(state[:, _RESTS] > 0, _ROUSED * self.floor, 1e-6)
        moves = (steps > 0) & (highest > now + least) & (state[:, _RESTS] < _FOR_GOOD)
        found = torch.where(moves, place + step, place), torch.where(moves, new_spread, spread)
        starts = self.starts[of]
        place, spread = (torch.where(starts, r, t) for r, t in zip(self._rho, found, strict=True))
        return place, spread

    def _bound(
        self,
        family: TruncatedNormal,
        places: Tensor,
        spreads: Tensor,
        worth: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Σ_ℓ q(ℓ) [U_ℓ − T·log(q(ℓ)^w² / ρ(ℓ))], w = `width`, for μ and s `(members, candidates)`,
        where U_ℓ is `(members, depth)` and T `(members,)`. The family stands for all.
        """
        depth = worth.shape[1]
        size = math.ceil(2.2 * depth) + 12  # as far as a member at the last depth can reach
        log_q = family.log_probs_at(family.numbers_of(places, spreads), size)
        q = log_q.exp()
        # Beyond the layers that there are nothing is known: neither gain nor loss.
        value = torch.cat([worth, worth[:, -1:].expand(-1, size - depth)], 1)
        divergence = (q * (self.width**2 * log_q - over.log_reference(self._rho, q))).sum(-1)
        return (q * value[:, None]).sum(-1) - temperature[:, None] * divergence

    def _worth(self, q: Tensor, of: slice, weights: Tensor | None) -> Tensor:
        """U_ℓ of the depths that there are, `(members, depth)`."""
        depth = q.shape[1]
        state, rows = self._state[of], self._gains[of, :depth]
        gain = over.mean(rows[:, 1:], weights)
        error = over.standard_error(rows[:, 1:], gain, weights)
        generalises = (state[:, _GENERALISES] > 0)[:, None]
        gain = torch.where(generalises, gain, self._train[of, 1:depth])
        doubt = torch.where(generalises, self.price, self.price * _TRAINING_DOUBT)
        net = over.total(rows, weights, self.most)[:, None] * (gain - doubt * error)
        # While little is learnt, little is asked for; on training rows each layer gains anyway.
        floor = (_SHARE * state[:, _LEARNT]).clamp(max=self.floor)[:, None]
        net = net - torch.where(generalises, floor, 0.0)
        trained = (q > over.LITTLE) & (self._seen[of, :depth] > 0)
        net = torch.where(trained[:, 1:], net, 0.0)
        return torch.cat([net.new_zeros(len(net), 1), net.cumsum(1)], 1)

    # The rest

    def columns(self) -> dict[str, float]:
        """Whether q rests."""
        return {"depth_settled": int(self.rests[0])}

    def rest(self) -> None:
        """Leave q where it is from now on."""
        self._state[:, _RESTS] = _FOR_GOOD

    def state(self) -> dict[str, Tensor]:
        """All running means."""
        names = ("sums", "train", "gains", "fast", "seen", "state")
        return {name: getattr(self, f"_{name}") for name in names}

    def check_state(self, state: dict[str, Tensor]) -> None:
        """Means of one length, of finite numbers."""
        super().check_state(state)
        over.check_state(state, self._state.shape, [_SINCE, _LOOKS, _ARRIVED, _TOTAL, _AHEAD])

    def load_state(self, model: "UDN", state: dict[str, Tensor]) -> None:
        """Put them back; who was told to rest before goes on resting."""
        told = bool((self._state[0, _RESTS] == _FOR_GOOD).item())
        for name, value in state.items():
            setattr(self, f"_{name}", value.clone().to(model.anchor.device))
        if told:
            self.rest()
