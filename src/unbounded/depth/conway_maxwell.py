"""A truncated Poisson family with a spread of its own."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unbounded.depth.rates import RateFamily

# Terms below exp(−_NEGLIGIBLE) of the largest do not change a sum in double precision.
_NEGLIGIBLE = 50.0


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

    @torch.no_grad()
    def sharpen(self, concentration: float) -> None:
        """Set ν: the larger, the closer together the depths around the mode, which stays."""
        if not (concentration > 0 and math.isfinite(concentration)):
            raise ValueError(f"concentration must be a positive finite number, got {concentration}")
        self.nu.fill_(concentration)

    def _power(self) -> Tensor:
        return self.nu

    def _quantile(self, rate: float) -> int:
        return conway_maxwell_quantile(rate, self.concentration, self.quantile)

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, in the dtype of μ's parameter."""
        return self.log_probs_up_to(self.max_depth())

    @torch.no_grad()
    def members(self, factors: Tensor, depth: int) -> Tensor:
        """log q of the members with the rates μ·factors, `(candidates, depth)`."""
        # The normalising sum has no closed form: it goes well beyond all supports in question.
        counts, log_factorials = self._counts(2 * depth + 50)
        rates = F.softplus(self.raw_rate.double()) * factors.double()
        scores = self.nu * (counts * rates.log()[:, None] - log_factorials)
        return self._cut(scores, scores.softmax(1), counts)[:, :depth]

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
