"""The truncated Poisson family of the paper, in log space and closed form."""

import math
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unbounded.depth.base import DepthFamily

# Half the width of the window of candidates that is evaluated around the first guess of the
# quantile. The guess below is off by at most 2 for rates from 1e-8 to 1e8 and quantiles up to
# 1 - 1e-6, so one window almost always does; if it does not, the window moves and doubles.
_HALF_WINDOW = 4


class TruncatedPoisson(DepthFamily):
    """q(ℓ; λ) with ℓ−1 ~ Poisson(λ), truncated at the δ-quantile (Theorem 1, TP(δ)).

    q(ℓ; λ) ∝ Poisson(ℓ−1; λ) for ℓ−1 ≤ δ-quantile of Poisson(λ), so that
    m(q) = 1 + quantile. λ is positive by softplus: `raw_rate` is what the optimiser moves.

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
        super().__init__()
        rate, quantile = float(rate), float(quantile)
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rate must be a positive finite number, got {rate}")
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile must be in [0.5, 1), got {quantile}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.quantile = quantile
        self.limit = limit
        # Inverse of softplus, written so that it is exact for large and for tiny rates.
        self.raw_rate = nn.Parameter(torch.tensor(rate + math.log(-math.expm1(-rate))))
        self._memo: tuple[float, int] | None = None
        self._table: tuple[Tensor, Tensor] | None = None

    @property
    def rate(self) -> float:
        """λ. For a gradient, take it of `log_probs`."""
        raw: float = self.raw_rate.item()
        return raw if raw > 30 else math.log1p(math.exp(raw))

    def max_depth(self) -> int:
        """m(q) = 1 + the δ-quantile of Poisson(λ). One host read of λ."""
        rate = self.rate
        if self._memo is None or self._memo[0] != rate:
            depth = 1 + poisson_quantile(rate, self.quantile)
            self._memo = (rate, depth if self.limit is None else min(depth, self.limit))
        return self._memo[1]

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, in the dtype of λ's parameter."""
        depth = self.max_depth()
        assert self._memo is not None
        log_probs: Tensor = _LogProbs.apply(self.raw_rate, self._memo[0], *self._counts(depth))
        return log_probs

    def log_probs_up_to(self, depth: int) -> Tensor:
        """log q(1), …, log q(depth) with the support held there, without a host read."""
        counts, log_factorials = self._counts(depth)
        rate = F.softplus(self.raw_rate.double())
        scores = counts * rate.log() - log_factorials
        return scores.log_softmax(0).to(self.raw_rate.dtype)

    @torch.no_grad()
    def members(self, factors: Tensor, depth: int) -> Tensor:
        """log q of the members with the rates λ·factors, `(candidates, depth)`, no host read.

        Args:
            factors: `(candidates,)`, positive.
            depth: how far to look; deep enough for the supports of all of them.

        Returns:
            log q(ℓ) of each for ℓ = 1 … depth, −∞ outside of its own support.
        """
        counts, log_factorials = self._counts(depth)
        rates = F.softplus(self.raw_rate.double()) * factors.double()
        log_poisson = counts * rates.log()[:, None] - log_factorials - rates[:, None]
        mass = log_poisson.exp()
        inside = mass.cumsum(1) - mass < self.quantile  # up to the δ-quantile and no further
        if self.limit is not None:
            inside &= counts < self.limit
        return log_poisson.where(inside, -torch.inf).log_softmax(1)

    @torch.no_grad()
    def scale_rate(self, factor: Tensor) -> None:
        """λ ← λ·factor, a scalar tensor, in place and without a host read."""
        rate = F.softplus(self.raw_rate.double()) * factor.double()
        self.raw_rate.copy_(rate + (-torch.expm1(-rate)).log())

    @torch.no_grad()
    def backward(self, log_probs: Tensor, grad: Tensor) -> None:
        """The closed form of `_LogProbs`, without autograd."""
        depth, raw_rate = self.max_depth(), self.raw_rate
        if log_probs.shape[0] != depth:
            with torch.enable_grad():
                super().backward(log_probs, grad)
            return
        if not raw_rate.requires_grad:
            return
        assert self._memo is not None
        slope = _slope(grad, log_probs, self._counts(depth)[0], self._memo[0]).to(raw_rate.dtype)
        raw_rate.grad = slope if raw_rate.grad is None else raw_rate.grad + slope

    def mode(self) -> int:
        """⌈λ⌉: the smaller of the two modes of a Poisson where λ is an integer (Theorem 1)."""
        return min(max(1, math.ceil(self.rate)), self.max_depth())

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; λ itself travels as a parameter."""
        return {"quantile": self.quantile, "limit": self.limit}

    def _counts(self, depth: int) -> tuple[Tensor, Tensor]:
        """0 … depth−1 and log of their factorials, both `(depth,)`; kept until one is too short."""
        table, device = self._table, self.raw_rate.device
        if table is None or table[0].shape[0] < depth or table[0].device != device:
            # Outside of inference mode: a table first made while predicting serves training too.
            with torch.inference_mode(False):
                counts = torch.arange(2 * depth, dtype=torch.float64, device=device)
                table = self._table = (counts, torch.lgamma(counts + 1))
        return table[0][:depth], table[1][:depth]


class _LogProbs(torch.autograd.Function):
    """log q(ℓ) = (ℓ−1) log λ − log (ℓ−1)! − log of the sum over the support, λ = softplus(ρ).

    Its derivative in ρ is (ℓ − E[ℓ]) σ(ρ)/λ with σ(ρ) = 1 − exp(−λ), which saves autograd a
    dozen small steps.
    """

    @staticmethod
    def forward(
        ctx: Any, raw_rate: Tensor, rate: float, counts: Tensor, log_factorials: Tensor
    ) -> Tensor:
        # Double precision throughout: at λ = 1e5 the terms k·log λ are about 1e6, and single
        # precision would leave an error of 0.1 in each log-probability.
        log_probs = (counts * math.log(rate) - log_factorials).log_softmax(0)
        ctx.rate = rate
        ctx.save_for_backward(raw_rate, counts, log_probs)
        return log_probs.to(raw_rate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raw_rate, counts, log_probs = ctx.saved_tensors
        slope = _slope(grads[0], log_probs, counts, ctx.rate)
        return slope.to(raw_rate.dtype), None, None, None


def _slope(grad: Tensor, log_probs: Tensor, counts: Tensor, rate: float) -> Tensor:
    """Σ_ℓ grad_ℓ · ∂ log q(ℓ)/∂ρ with ∂ log q(ℓ)/∂ρ = (ℓ − E[ℓ]) σ(ρ)/λ."""
    centred = counts - log_probs.double().exp() @ counts
    return (grad.double() @ centred) * (-math.expm1(-rate) / rate)


def poisson_quantile(rate: float, quantile: float) -> int:
    """The smallest k with P(X ≤ k) ≥ quantile for X ~ Poisson(rate); no walk from zero.

    A Cornish–Fisher expansion gives a first guess; the exact distribution function,
    P(X ≤ k) = Q(k+1, rate), is then evaluated on a few integers around it.
    """
    if not (rate >= 0 and math.isfinite(rate)):
        raise FloatingPointError(f"the rate of the depth family is {rate}: training has diverged")
    z = NormalDist().inv_cdf(quantile)
    root = math.sqrt(rate)
    guess = math.floor(rate + z * root + (z * z - 1) / 6)
    low, width = max(0, guess - _HALF_WINDOW), 2 * _HALF_WINDOW + 1
    while True:
        candidates = torch.arange(low, low + width, dtype=torch.float64)
        enough = poisson_cdf(candidates, rate) >= quantile
        index = int(enough.to(torch.uint8).argmax())
        if bool(enough[index]) and (index > 0 or low == 0):
            return low + index
        if bool(enough[index]):
            low = max(0, low - width)  # even the first candidate is past the quantile
        else:
            low += width
        width *= 2


def poisson_cdf(counts: Tensor, rate: float) -> Tensor:
    """P(X ≤ k) for X ~ Poisson(rate), the regularised incomplete gamma function Q(k+1, rate)."""
    return torch.special.gammaincc(counts + 1, torch.full_like(counts, rate))
