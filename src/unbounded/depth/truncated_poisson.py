"""The truncated Poisson family of the paper, in log space and closed form."""

import math
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from unbounded.depth.rates import RateFamily

# Half the width of the window of candidates that is evaluated around the first guess of the
# quantile. The guess below is off by at most 2 for rates from 1e-8 to 1e8 and quantiles up to
# 1 - 1e-6, so one window almost always does; if it does not, the window moves and doubles.
_HALF_WINDOW = 4


class TruncatedPoisson(RateFamily):
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
        super().__init__(rate, quantile, limit)

    def _quantile(self, rate: float) -> int:
        return poisson_quantile(rate, self.quantile)

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, in the dtype of λ's parameter."""
        depth = self.max_depth()
        assert self._memo is not None
        log_probs: Tensor = _LogProbs.apply(self.raw_rate, self._memo[0], *self._counts(depth))
        return log_probs

    @torch.no_grad()
    def members(self, factors: Tensor, depth: int) -> Tensor:
        """log q of the members with the rates λ·factors, `(candidates, depth)`."""
        counts, log_factorials = self._counts(depth)
        rates = F.softplus(self.raw_rate.double()) * factors.double()
        scores = counts * rates.log()[:, None] - log_factorials - rates[:, None]
        return self._cut(scores, scores.exp(), counts)

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

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; λ itself travels as a parameter."""
        return {"quantile": self.quantile, "limit": self.limit}


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
