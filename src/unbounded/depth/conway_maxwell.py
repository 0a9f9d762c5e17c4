"""A truncated Poisson family with a spread of its own."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.depth.base import DepthFamily

# Terms below exp(−_NEGLIGIBLE) of the largest do not change a sum in double precision.
_NEGLIGIBLE = 50.0


class TruncatedConwayMaxwell(DepthFamily):
    """q(ℓ; μ) ∝ (μ^(ℓ−1)/(ℓ−1)!)^ν, truncated at the δ-quantile: Conway–Maxwell–Poisson.

    The variance of a Poisson is its mean: a posterior around depth 9 has mass from depth 4 to 14,
    and each of these heads pulls at the layers that it shares with the deeper ones. Here the
    variance is about μ/ν, while the mode stays where the Poisson has it; ν = 1 is the paper's
    family. Definition 1 holds for every ν > 0: the support is bounded, n + 1 is the mode of the
    member with μ = n + ½, and μ is continuous (positive by softplus).

    Args:
        rate: the first μ.
        concentration: ν, fixed.
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
        super().__init__()
        rate, concentration, quantile = float(rate), float(concentration), float(quantile)
        for name, value in (("rate", rate), ("concentration", concentration)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive finite number, got {value}")
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile must be in [0.5, 1), got {quantile}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.concentration = concentration
        self.quantile = quantile
        self.limit = limit
        # Inverse of softplus, written so that it is exact for large and for tiny rates.
        self.raw_rate = nn.Parameter(torch.tensor(rate + math.log(-math.expm1(-rate))))
        self._memo: tuple[float, int] | None = None
        self._table: tuple[Tensor, Tensor] | None = None

    @property
    def rate(self) -> float:
        """μ. For a gradient, take it of `log_probs`."""
        return float(F.softplus(self.raw_rate.detach().double()))

    def max_depth(self) -> int:
        """m(q) = 1 + the δ-quantile. One host read of μ."""
        rate = self.rate
        if self._memo is None or self._memo[0] != rate:
            depth = 1 + conway_maxwell_quantile(rate, self.concentration, self.quantile)
            self._memo = (rate, depth if self.limit is None else min(depth, self.limit))
        return self._memo[1]

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, in the dtype of μ's parameter."""
        return self.log_probs_up_to(self.max_depth())

    def log_probs_up_to(self, depth: int) -> Tensor:
        """log q(1), …, log q(depth) with the support held there, without a host read."""
        counts, log_factorials = self._counts(depth)
        rate = F.softplus(self.raw_rate.double())
        scores = self.concentration * (counts * rate.log() - log_factorials)
        return scores.log_softmax(0).to(self.raw_rate.dtype)

    @torch.no_grad()
    def members(self, factors: Tensor, depth: int) -> Tensor:
        """log q of the members with μ·factors, `(candidates, depth)`; see `TruncatedPoisson`."""
        # The normalising sum has no closed form: it goes well beyond all supports in question.
        counts, log_factorials = self._counts(2 * depth + 50)
        rates = F.softplus(self.raw_rate.double()) * factors.double()
        scores = self.concentration * (counts * rates.log()[:, None] - log_factorials)
        mass = scores.softmax(1)
        inside = mass.cumsum(1) - mass < self.quantile
        if self.limit is not None:
            inside &= counts < self.limit
        return scores.where(inside, -torch.inf).log_softmax(1)[:, :depth]

    @torch.no_grad()
    def scale_rate(self, factor: Tensor) -> None:
        """μ ← μ·factor, a scalar tensor, in place and without a host read."""
        rate = F.softplus(self.raw_rate.double()) * factor.double()
        self.raw_rate.copy_(rate + (-torch.expm1(-rate)).log())

    def _counts(self, depth: int) -> tuple[Tensor, Tensor]:
        """0 … depth−1 and log of their factorials, both `(depth,)`; kept until one is too short."""
        table, device = self._table, self.raw_rate.device
        if table is None or table[0].shape[0] < depth or table[0].device != device:
            with torch.inference_mode(False):  # what predicting makes serves training too
                counts = torch.arange(2 * depth, dtype=torch.float64, device=device)
                table = self._table = (counts, torch.lgamma(counts + 1))
        return table[0][:depth], table[1][:depth]

    def mode(self) -> int:
        """⌈μ⌉, as for a Poisson: q(k+1)/q(k) = (μ/k)^ν is above 1 just where μ/k is."""
        return min(max(1, math.ceil(self.rate)), self.max_depth())

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; μ itself travels as a parameter."""
        return {
            "concentration": self.concentration,
            "quantile": self.quantile,
            "limit": self.limit,
        }


def log_weights(counts: Tensor, rate: Tensor, concentration: float | Tensor) -> Tensor:
    """ν (k log μ − log k!), the logarithm of q up to a constant, in double precision."""
    return concentration * (counts * rate.log() - torch.lgamma(counts + 1))


def conway_maxwell_quantile(rate: float, concentration: float, quantile: float) -> int:
    """The smallest k with P(X ≤ k) ≥ quantile; sums over the terms around the mode that count."""
    if not (rate >= 0 and math.isfinite(rate)):
        raise FloatingPointError(f"the rate of the depth family is {rate}: training has diverged")
    if rate == 0:
        return 0
    mode = math.floor(rate)
    reach = 1 + math.ceil(9 * math.sqrt(rate / concentration))
    level = torch.tensor(rate, dtype=torch.float64)

    def height(count: int) -> float:
        pair = torch.tensor([count, mode], dtype=torch.float64)
        at, top = log_weights(pair, level, concentration).tolist()
        return float(at - top)

    while height(mode + reach) > -_NEGLIGIBLE:
        reach *= 2
    low = max(0, mode - reach)
    while low > 0 and height(low) > -_NEGLIGIBLE:
        low = max(0, mode - 2 * (mode - low))
    counts = torch.arange(low, mode + reach + 1, dtype=torch.float64)
    cdf = log_weights(counts, level, concentration).softmax(0).cumsum(0)
    # The sum of all terms rounds to 1 or a hair less; quantiles are below 1.
    return low + int((cdf < quantile).sum().clamp(max=len(counts) - 1))
