"""What families with one positive number λ share."""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.depth.base import DepthFamily


class RateFamily(DepthFamily):
    """A family whose members differ by λ > 0 alone, each cut at its δ-quantile.

    λ is positive by softplus: `raw_rate` is what the optimiser moves.

    Args:
        rate: the first λ.
        quantile: δ in [0.5, 1).
        limit: a guard on `max_depth` for people with little memory; off where it is None.
    """

    def __init__(self, rate: float, quantile: float, limit: int | None):
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
        self._memo: tuple[float, float, int] | None = None  # λ, ν, m
        self._table: tuple[Tensor, Tensor] | None = None
        self._view: tuple[int, Tensor, Tensor] | None = None

    @property
    def concentration(self) -> float:
        """ν of q(ℓ) ∝ (λ^(ℓ−1)/(ℓ−1)!)^ν; 1 is the Poisson. A host read where it is a tensor."""
        return float(self._power())

    def _power(self) -> Tensor | float:
        """ν where the parameters are, without a host read."""
        return 1.0

    @property
    def rate(self) -> float:
        """λ. For a gradient, take it of `log_probs`."""
        raw: float = self.raw_rate.item()
        return raw if raw > 30 else math.log1p(math.exp(raw))

    @abstractmethod
    def _quantile(self, rate: float) -> int:
        """The δ-quantile of the member with this rate before it is cut, from 0."""

    @abstractmethod
    def members(self, factors: Tensor, depth: int) -> Tensor:
        """log q of the members with the rates λ·factors, `(candidates, depth)`, no host read.

        Args:
            factors: `(candidates,)`, positive.
            depth: how far to look; deep enough for the supports of all of them.

        Returns:
            log q(ℓ) of each for ℓ = 1 … depth, −∞ outside of its own support.
        """

    def max_depth(self) -> int:
        """m(q) = 1 + the δ-quantile. A host read of λ, and of ν where it can change."""
        rate, nu = self.rate, self.concentration
        if self._memo is None or self._memo[:2] != (rate, nu):
            depth = 1 + self._quantile(rate)
            self._memo = (rate, nu, depth if self.limit is None else min(depth, self.limit))
        return self._memo[2]

    def log_probs_up_to(self, depth: int) -> Tensor:
        """log q(1), …, log q(depth) with the support held there, without a host read."""
        counts, log_factorials = self._counts(depth)
        rate = F.softplus(self.raw_rate.double())
        scores = self._power() * (counts * rate.log() - log_factorials)
        return scores.log_softmax(0).to(self.raw_rate.dtype)

    def mode(self) -> int:
        """⌈λ⌉: the smaller of two modes where λ is an integer (Theorem 1)."""
        return min(max(1, math.ceil(self.rate)), self.max_depth())

    @torch.no_grad()
    def scale_rate(self, factor: Tensor) -> None:
        """λ ← λ·factor, a scalar tensor, in place and without a host read."""
        rate = F.softplus(self.raw_rate.double()) * factor.double()
        self.raw_rate.copy_(rate + (-torch.expm1(-rate)).log())

    def _cut(self, scores: Tensor, mass: Tensor, counts: Tensor) -> Tensor:
        """log q of several members, `(candidates, depth)`: each up to its quantile, no further."""
        inside = mass.cumsum(1) - mass < self.quantile
        if self.limit is not None:
            inside &= counts < self.limit
        return scores.where(inside, -torch.inf).log_softmax(1)

    def _counts(self, depth: int) -> tuple[Tensor, Tensor]:
        """0 … depth−1 and log of their factorials, both `(depth,)`; kept as long as they serve."""
        device = self.raw_rate.device
        if self._view is not None and self._view[0] == depth and self._view[1].device == device:
            return self._view[1:]
        table = self._table
        # Outside of inference mode: what is first made while predicting serves training too.
        with torch.inference_mode(False):
            if table is None or table[0].shape[0] < depth or table[0].device != device:
                counts = torch.arange(2 * depth, dtype=torch.float64, device=device)
                table = self._table = (counts, torch.lgamma(counts + 1))
            self._view = (depth, table[0][:depth], table[1][:depth])
        return self._view[1:]
