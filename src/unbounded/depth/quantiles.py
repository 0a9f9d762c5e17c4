"""What families have in common that are cut at a quantile."""

import math
from typing import Any

import torch
from torch import Tensor

from unbounded.depth.base import DepthFamily


class QuantileFamily(DepthFamily):
    """A family without an upper limit of its own, each member cut at its δ-quantile.

    Args:
        quantile: δ in [0.5, 1).
        limit: a guard on `max_depth` for people with little memory; off where it is None.
    """

    def __init__(self, quantile: float, limit: int | None):
        super().__init__()
        quantile = float(quantile)
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile must be in [0.5, 1), got {quantile}")
        if limit is not None and not (limit >= 1 and float(limit).is_integer()):
            raise ValueError(f"limit must be an integer of at least 1, got {limit}")
        self.quantile, self.limit = quantile, None if limit is None else int(limit)

    @property
    def bound(self) -> int | None:
        """The limit, if one was set."""
        return self.limit

    def _limited(self, depth: Tensor) -> Tensor:
        return depth if self.limit is None else depth.clamp(max=self.limit)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; λ itself travels as parameters."""
        return {"quantile": self.quantile, "limit": self.limit}


def inverse_softplus(value: float) -> float:
    """Inverse of softplus, written so that it is exact for large and for tiny numbers."""
    return value + math.log(-math.expm1(-value))


def inverse_softplus_tensor(value: Tensor) -> Tensor:
    """The same of a tensor."""
    return value + (-torch.expm1(-value)).log()
