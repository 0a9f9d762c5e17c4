"""Families with one positive number λ: the paper's truncated Poisson, and one with a spread."""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unbounded.depth.base import Numbers
from unbounded.depth.quantiles import QuantileFamily, inverse_softplus, inverse_softplus_tensor

LEAST_RATE, LARGEST_RATE = 1e-250, 1e8
"""λ is held between these, so that log λ and m(q) are finite numbers that can be computed."""

# Below this softplus⁻¹(λ) is held, so that log λ stays finite in double precision.
_LOWEST = -600.0
LEAST_CONCENTRATION, LARGEST_CONCENTRATION = 1e-3, 1e6
"""ν lies between these: sums over the depths that count stay short, and ν log λ finite."""
# Terms below exp(−_NEGLIGIBLE) of the largest do not change a sum in double precision.
_NEGLIGIBLE = 50.0


class RateFamily(QuantileFamily):
    """A family whose members differ by λ > 0 alone, each cut at its δ-quantile.

    λ is positive by softplus: `raw_rate` is what the optimiser moves.

    Args:
        rate: the first λ.
        quantile: δ in [0.5, 1).
        limit: a guard on `max_depth` for people with little memory; off where it is None.
    """

    def __init__(self, rate: float, quantile: float, limit: int | None):
        super().__init__(quantile, limit)
        rate = float(rate)
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate must be a positive finite number, got {rate}")
        if not LEAST_RATE <= rate <= LARGEST_RATE:
            raise ValueError(f"rate must be from {LEAST_RATE:g} to {LARGEST_RATE:g}, got {rate}")
        self.raw_rate = nn.Parameter(torch.tensor(inverse_softplus(rate)))

    @property
    def rate(self) -> float:
        """λ. For a gradient, take it of `log_probs`."""
        return _host_rate(self.raw_rate.detach())

    def mode(self) -> int:
        """⌈λ⌉: the smaller of two modes where λ is an integer (Theorem 1)."""
        return min(max(1, math.ceil(self.rate)), self.max_depth())

    def scaled(self, factors: Tensor) -> dict[str, Tensor]:
        """λ of the members with the rates λ·factors, for `log_probs_at`; no host read."""
        rate = _rate(self.raw_rate.detach()) * factors.double()
        numbers = {name: t.expand(factors.shape) for name, t in self.numbers().items()}
        return {**numbers, "raw_rate": inverse_softplus_tensor(rate)}

    @torch.no_grad()
    def scale_rate(self, factor: Tensor) -> None:
        """λ ← λ·factor, a scalar tensor, in place and without a host read."""
        self.raw_rate.copy_(self.scaled(factor)["raw_rate"])

    @torch.no_grad()
    def withdraw(self, depth: int) -> None:
        """The largest λ whose support ends at `depth`, if it ends beyond; by halving."""
        if not self.max_depth() > depth:
            return
        low, high = LEAST_RATE, self.rate
        for _ in range(60):
            middle = (low + high) / 2
            self.raw_rate.fill_(inverse_softplus(middle))
            low, high = (low, middle) if self.max_depth() > depth else (middle, high)
        self.raw_rate.fill_(inverse_softplus(low))

    def scores(self, at: Numbers, size: int) -> Tensor:
        """(ℓ−1) log λ − log (ℓ−1)!, in double precision: single fails from λ = 10⁴ on."""
        scores: Tensor = _Scores.apply(at["raw_rate"], *_counts(size, at["raw_rate"].device))
        return scores


class TruncatedPoisson(RateFamily):
    """q(ℓ; λ) with ℓ−1 ~ Poisson(λ), truncated at the δ-quantile (Theorem 1, TP(δ)).

    q(ℓ; λ) ∝ Poisson(ℓ−1; λ) for ℓ−1 ≤ δ-quantile of Poisson(λ), so that
    m(q) = 1 + quantile.

    Args:
        rate: the first λ.
        quantile: δ in [0.5, 1); the paper uses 0.95.
        limit: a guard on `max_depth` for people with little memory. Off by default: the
            depth has no upper limit.

    Example:
        >>> q = TruncatedPoisson(rate=1.0)
        >>> q.max_depth(), round(q.mean(), 2)
        (4, 1.94)
    """

    def __init__(self, rate: float = 1.0, quantile: float = 0.95, limit: int | None = None):
        super().__init__(rate, quantile, limit)

    def end(self, at: Numbers, size: int) -> Tensor:
        """1 + the δ-quantile of the Poisson; exact for any λ, whatever `size` is."""
        rate = _rate(at["raw_rate"].detach())
        return self._limited(1 + poisson_quantile(rate, self.quantile))


class TruncatedConwayMaxwell(RateFamily):
    """q(ℓ; μ) ∝ (μ^(ℓ−1)/(ℓ−1)!)^ν, truncated at the δ-quantile: Conway–Maxwell–Poisson.

    The variance of a Poisson is its mean: a posterior around depth 9 has mass from depth 4 to 14,
    and each of these heads pulls at the layers that it shares with the deeper ones. Here the
    variance is about μ/ν, while the mode stays where the Poisson has it; ν = 1 is the paper's
    family. Definition 1 holds for every ν > 0: the support is bounded, n + 1 is the mode of the
    member with μ = n + ½, and μ is continuous (positive by softplus).

    Args:
        rate: the first μ.
        concentration: ν; not learnt, but `sharpen` changes it.
        quantile: δ in [0.5, 1).
        limit: a guard on `max_depth` for people with little memory; off by default.

    Example:
        >>> q = TruncatedConwayMaxwell(rate=5.0, concentration=4.0)
        >>> q.max_depth(), round(q.mean(), 2)
        (7, 5.49)
    """

    def __init__(
        self,
        rate: float = 1.0,
        concentration: float = 4.0,
        quantile: float = 0.95,
        limit: int | None = None,
    ):
        super().__init__(rate, quantile, limit)
        # A buffer: it moves and is saved with μ, and a CUDA graph sees its changes.
        self.nu: Tensor
        self.register_buffer("nu", torch.ones((), dtype=torch.float64))
        self.sharpen(concentration)

    @property
    def concentration(self) -> float:
        """ν. A host read."""
        return float(self.nu)

    @torch.no_grad()
    def sharpen(self, concentration: float) -> None:
        """Set ν: the larger, the closer together the depths around the mode, which stays."""
        if not (concentration > 0 and math.isfinite(concentration)):
            raise ValueError(f"concentration must be a positive finite number, got {concentration}")
        if not LEAST_CONCENTRATION <= concentration <= LARGEST_CONCENTRATION:
            raise ValueError(
                f"concentration must be from {LEAST_CONCENTRATION:g} to "
                f"{LARGEST_CONCENTRATION:g}, got {concentration}"
            )
        self.nu.fill_(concentration)
        self.widest = concentration  # what `end` goes by where ν lies on a device

    def settings(self) -> dict[str, Any]:
        """Quantile, limit, and ν: how far sums have to go."""
        return {**super().settings(), "widest": self.concentration}

    def scores(self, at: Numbers, size: int) -> Tensor:
        """ν times those of the Poisson."""
        return at["nu"].double()[..., None] * super().scores(at, size)

    def end(self, at: Numbers, size: int) -> Tensor:
        """1 + the δ-quantile, by a sum over the terms around the mode that count."""
        nu = at["nu"].detach().double()[..., None]
        least = self.widest if nu.is_cuda else float(nu.min())
        # Where ν (d − (μ+d) log(1+d/μ)) falls below −_NEGLIGIBLE, by Bernstein's inequality, for
        # the largest μ of interest.
        third = _NEGLIGIBLE / (3 * least)
        reach = 2 + math.ceil(third + math.sqrt(third**2 + 2 * _NEGLIGIBLE * size / least))
        rate = _rate(at["raw_rate"].detach())[..., None]
        low = (rate.floor() - reach).clamp(min=0)
        counts = low + torch.arange(2 * reach + 1, dtype=torch.float64, device=rate.device)
        weights = nu * (counts * rate.log() - torch.lgamma(counts + 1))
        below = weights.softmax(-1).cumsum(-1) < self.quantile
        # The sum of all terms rounds to 1 or a hair less; quantiles are below 1.
        index = below.sum(-1).clamp(max=2 * reach)
        return self._limited(1 + low[..., 0].long() + index)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; μ itself travels as a parameter."""
        return {"concentration": self.concentration, **super().config()}


class _Scores(torch.autograd.Function):
    """k log λ − log k! with its derivative in closed form, k σ(ρ)/λ for λ = softplus(ρ).

    It saves autograd half a dozen small steps, which small networks would notice.
    """

    @staticmethod
    def forward(ctx: Any, raw: Tensor, counts: Tensor, log_factorials: Tensor) -> Tensor:
        ctx.save_for_backward(raw, counts)
        if raw.dim() == 0 and not raw.is_cuda:  # one number is faster on the host
            return counts * math.log(_host_rate(raw)) - log_factorials
        return counts * _rate(raw).log()[..., None] - log_factorials

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raw, counts = ctx.saved_tensors
        total = grads[0] @ counts
        # σ(ρ) = 1 − exp(−λ)
        if raw.dim() == 0 and not raw.is_cuda:
            rate = _host_rate(raw)
            return total.mul_(-math.expm1(-rate) / rate).to(raw.dtype), None, None
        rates = _rate(raw)
        return (total * (-torch.expm1(-rates) / rates)).to(raw.dtype), None, None


@cache
def _normal_quantile(quantile: float) -> float:
    from statistics import NormalDist  # with its fractions and decimals, only where it is needed

    return NormalDist().inv_cdf(quantile)


def poisson_quantile(rate: Tensor, quantile: float) -> Tensor:
    """The smallest k with P(X ≤ k) ≥ quantile for X ~ Poisson(rate), elementwise; no walk from 0.

    A Cornish–Fisher expansion gives a first guess; the exact distribution function,
    P(X ≤ k) = Q(k+1, rate), is then evaluated on a few integers around it. The guess is off by
    less than the window for rates up to 10⁸ and quantiles up to 1 − 10⁻⁹.
    """
    z = _normal_quantile(quantile)
    window = 4 + math.ceil(z * z / 6)
    rate = rate.double()[..., None]
    guess = (rate + z * rate.sqrt() + (z * z - 1) / 6).floor()
    low = (guess - window).clamp(min=0)
    counts = low + torch.arange(2 * window + 1, dtype=torch.float64, device=rate.device)
    enough = torch.special.gammaincc(counts + 1, rate) >= quantile
    return low[..., 0].long() + enough.to(torch.uint8).argmax(-1)


def _rate(raw: Tensor) -> Tensor:
    """softplus, in double precision; what is positive stays so."""
    return F.softplus(raw.double().clamp(_LOWEST, LARGEST_RATE))


def _host_rate(raw: Tensor) -> float:
    """The same of one number on the host."""
    value = min(max(float(raw), _LOWEST), LARGEST_RATE)
    return value if value > 30 else math.log1p(math.exp(value))


_TABLES: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
_VIEWS: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}


def _counts(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """k = 0 … size−1 and log k!, `(size,)` each, as views of tables that stay where they are.

    A table is kept when a larger one takes its place: a CUDA graph may still read it.
    """
    if (size, device) in _VIEWS:
        return _VIEWS[size, device]
    tables = _TABLES.setdefault(device, [])
    # Outside of inference mode: what is first made while predicting serves training too.
    with torch.inference_mode(False):
        # By size and not the latest: another thread may have added one that is too small.
        table = next((pair for pair in reversed(tables) if pair[0].shape[0] >= size), None)
        if table is None:
            counts = torch.arange(max(64, 2 * size), dtype=torch.float64, device=device)
            table = counts, torch.lgamma(counts + 1)
            tables.append(table)
        _VIEWS[size, device] = views = table[0][:size], table[1][:size]
    return views
