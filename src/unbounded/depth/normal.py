"""A family with a place and a spread of its own, cut where no jump is seen."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.depth.base import NO_MASS, Numbers
from unbounded.depth.quantiles import QuantileFamily, inverse_softplus, inverse_softplus_tensor

_TINY = 1e-30  # mass below this is none: its log would say more than double precision knows


class TruncatedNormal(QuantileFamily):
    """A normal distribution in pieces of one depth each, with a continuous truncation.

    Let p(ℓ) = P(ℓ−½ < z < ℓ+½ | z > ½) for z ~ N(μ, s²), with the distribution function F. Then

        q(ℓ; μ, s) = [min(F(ℓ), δ) − F(ℓ−1)]₊ / δ.

    All mass beyond the δ-quantile is cut off, so the support is bounded: m(q) is the first depth
    with F(m) ≥ δ. The last depth has only what is left up to δ. As μ or s grow, the next one
    enters with mass 0: neither q nor 𝓛 jumps where a layer is born. Any depth is the mode of
    some member (μ = ℓ), and both numbers are continuous: Definition 1 holds. A Poisson's spread
    is the root of its mean, here it is free; a discretised normal over depths has been used
    before in BIASlab's DepthEstimationBNN.

    Args:
        place: the first μ; the mode for μ ≥ 1.
        spread: the first s > 0, positive by softplus.
        quantile: δ in [0.5, 1).
        limit: a guard on `max_depth` for people with little memory; off by default.

    Example:
        >>> q = TruncatedNormal(place=3.0, spread=0.5)
        >>> q.max_depth(), round(q.mean(), 2)
        (4, 2.99)
    """

    def __init__(
        self,
        place: float = 4.0,
        spread: float = 2.0,
        quantile: float = 0.99,
        limit: int | None = None,
    ):
        super().__init__(quantile, limit)
        place, spread = self.checked(place, spread)
        if self.quantile > 1 - 1e-9:
            raise ValueError(f"quantile must be at most 1 − 10⁻⁹, got {quantile}")
        self.mu = nn.Parameter(torch.tensor(place))
        self.raw_spread = nn.Parameter(torch.tensor(inverse_softplus(spread)))

    @staticmethod
    def checked(place: float, spread: float) -> tuple[float, float]:
        """μ and s as numbers; a ValueError if no member has them."""
        place, spread = float(place), float(spread)
        if not abs(place) <= 1e6:
            raise ValueError(f"place must be a number from −10⁶ to 10⁶, got {place}")
        if not 1e-3 <= spread <= 1e6:
            raise ValueError(f"spread must be a number from 0.001 to 10⁶, got {spread}")
        return place, spread

    @property
    def place(self) -> float:
        """μ. A host read."""
        return float(self.mu.detach())

    @property
    def spread(self) -> float:
        """s. A host read."""
        return float(_spread(self.raw_spread.detach()))

    def spread_at(self, at: Numbers) -> Tensor:
        """s of any members, `(*lead,)`, in double precision."""
        return _spread(at["raw_spread"])

    def numbers_of(self, place: Tensor, spread: Tensor) -> dict[str, Tensor]:
        """λ of members with these places and spreads, `(*lead,)` each."""
        return {"mu": place, "raw_spread": inverse_softplus_tensor(spread.double())}

    @torch.no_grad()
    def put(self, place: Tensor | float, spread: Tensor | float) -> None:
        """Set μ and s in place, without a host read."""
        given = (torch.as_tensor(t, device=self.mu.device) for t in (place, spread))
        for name, value in self.numbers_of(*given).items():
            getattr(self, name).copy_(value)

    def scores(self, at: Numbers, size: int) -> Tensor:
        """log q(ℓ; μ, s), `NO_MASS` beyond m(q)."""
        log_tail = self._log_tails(at, size)  # log P(depth > ℓ), ℓ = 0 … size
        # q(ℓ)·δ = P(depth > ℓ−1) − max(P(depth > ℓ), 1−δ)
        rest = log_tail[..., 1:].clamp(min=math.log1p(-self.quantile))
        above = log_tail[..., :-1]
        gone = (rest - above).clamp(max=-_TINY)
        scores = above + (-torch.expm1(gone)).log() - math.log(self.quantile)
        if self.limit is not None:  # the deepest has what lies beyond
            last = torch.arange(1, size + 1, device=scores.device) == self.limit
            whole = above + torch.log1p(-(math.log1p(-self.quantile) - above).clamp(max=0).exp())
            scores = torch.where(last, whole - math.log(self.quantile), scores)
        inside = above > math.log1p(-self.quantile) + _TINY
        return scores.clamp(min=math.log(_TINY)).masked_fill(~inside, NO_MASS)

    def end(self, at: Numbers, size: int) -> Tensor:
        """The first depth with F(ℓ) ≥ δ; size + 1 where it lies beyond."""
        log_tail = self._log_tails({k: v.detach() for k, v in at.items()}, size)[..., 1:]
        beyond = (log_tail > math.log1p(-self.quantile) + _TINY).sum(-1) + 1
        return self._limited(beyond)

    def _log_tails(self, at: Numbers, size: int) -> Tensor:
        """log P(depth > ℓ) for ℓ = 0 … size, before the truncation: `(*lead, size + 1)`."""
        place, spread = at["mu"].double()[..., None], _spread(at["raw_spread"])[..., None]
        edges = torch.arange(size + 1, dtype=torch.float64, device=place.device) + 0.5
        tails = torch.special.log_ndtr((place - edges) / spread)
        return tails - tails[..., :1]


def _spread(raw: Tensor) -> Tensor:
    """softplus in double precision; never so narrow that its ratios overflow."""
    return F.softplus(raw.double()).clamp(min=1e-3)
