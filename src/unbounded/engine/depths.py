"""Depth families of many members at once: q(ℓ; λ_r) for r = 1 … R as one tensor.

A family takes part in a population by a stacked form of itself, found by its class in `STACKS`.
A stacked form holds no parameters: they are rows of a tensor that the population owns.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unbounded.depth import (
    DepthFamily,
    FiniteDepth,
    FixedDepth,
    TruncatedConwayMaxwell,
    TruncatedPoisson,
)
from unbounded.depth.conway_maxwell import conway_maxwell_quantile
from unbounded.depth.truncated_poisson import poisson_quantile

NO_MASS = -1e30
"""Stands for log 0. Finite, so that 0 · log 0 = 0 in the terms of the ELBO and their gradients."""


class DepthStack(ABC):
    """The families of several members, all of one class.

    Attributes:
        families: one for each member.
        num_parameters: how many numbers λ is, for each member.
    """

    num_parameters: ClassVar[int] = 0

    def __init__(self, families: Sequence[Any]):
        self.families = list(families)

    @classmethod
    def key(cls, family: Any) -> tuple[Any, ...]:
        """Members with equal keys can share one stacked form."""
        return (type(family).__name__,)

    @abstractmethod
    def bounds(self) -> list[int | None]:
        """The largest depth that each member can ever reach; None where there is no limit."""

    @abstractmethod
    def max_depths(self, values: Tensor, size: int) -> Tensor:
        """m(q) of each member, `(members,)`; any number above `size` where it is beyond that.

        Args:
            values: λ of each member, `(members, num_parameters)`.
            size: the largest depth of interest.
        """

    @abstractmethod
    def scores(self, values: Tensor, size: int) -> Tensor:
        """log q(ℓ) up to a constant over ℓ = 1 … size, `(members, size)`, in double precision.

        What lies beyond m(q) is masked by the caller; depths inside without mass are `NO_MASS`.
        """

    def backward(self, values: Tensor, grad: Tensor) -> Tensor:
        """From ∂/∂`scores`, `(members, size)`, to ∂/∂λ, shaped like `values`; here by autograd."""
        leaf = values.detach().requires_grad_()
        with torch.enable_grad():
            scores = self.scores(leaf, grad.shape[1])
        (found,) = torch.autograd.grad(scores, leaf, grad)
        return found

    def reach(self, values: Tensor, movement: Tensor, size: int) -> Tensor:
        """The largest m(q) while no number of λ moves by more than `movement`, `(members,)`."""
        return self.max_depths(values, size)

    def reach_exactly(self, values: Tensor, movement: Tensor) -> int:
        """The largest of `reach` over the members, however large; read on the host."""
        return max(bound for bound in self.bounds() if bound is not None)

    def values(self) -> Tensor:
        """λ of each member as it is now, `(members, num_parameters)`."""
        return torch.zeros(len(self.families), 0)

    def write(self, family: Any, values: Tensor) -> None:  # noqa: B027 (nothing to learn)
        """Give a family the numbers `(num_parameters,)`."""


class TruncatedPoissonStack(DepthStack):
    """`TruncatedPoisson` of many members; rates, quantiles and limits may all differ."""

    num_parameters = 1

    def __init__(self, families: Sequence[TruncatedPoisson]):
        super().__init__(families)
        self._quantiles = torch.tensor([f.quantile for f in families], dtype=torch.float64)
        limits = [torch.inf if f.limit is None else f.limit for f in families]
        self._limits = torch.tensor(limits, dtype=torch.float64)
        self._counted: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def bounds(self) -> list[int | None]:
        """The limit, if one was set."""
        return [family.limit for family in self.families]

    def max_depths(self, values: Tensor, size: int) -> Tensor:
        """1 + the number of counts k with P(X ≤ k) < δ, by the same function as the lone family."""
        self._move(values)
        rates = F.softplus(values.double())
        counts, _ = self._counts(size, values.device)
        below = torch.special.gammaincc(counts + 1, rates)
        depths = 1 + (below < self._quantiles[:, None]).sum(1)
        return torch.minimum(depths, self._limits).long()

    def scores(self, values: Tensor, size: int) -> Tensor:
        """(ℓ−1) log λ − log (ℓ−1)!"""
        counts, log_factorials = self._counts(size, values.device)
        return counts * F.softplus(values.double()).log() - log_factorials

    def backward(self, values: Tensor, grad: Tensor) -> Tensor:
        """d/dλ of it is (ℓ−1)/λ, and λ is a softplus."""
        counts, _ = self._counts(grad.shape[1], values.device)
        wide = values.double()
        return (grad @ counts)[:, None] * wide.sigmoid() / F.softplus(wide)

    def reach(self, values: Tensor, movement: Tensor, size: int) -> Tensor:
        """m(q) grows with λ: the one at the upper end of the interval."""
        return self.max_depths(values.double() + movement[:, None], size)

    def reach_exactly(self, values: Tensor, movement: Tensor) -> int:
        """The same from the lone family's quantile."""
        rates = F.softplus(values[:, 0].double() + movement).tolist()
        pairs = zip(self.families, rates, strict=True)
        return max(
            min(1 + poisson_quantile(rate, f.quantile), f.limit or (1 << 62)) for f, rate in pairs
        )

    def values(self) -> Tensor:
        """The raw rates, `(members, 1)`."""
        return torch.stack([f.raw_rate.detach().reshape(1).cpu() for f in self.families])

    def write(self, family: Any, values: Tensor) -> None:
        """Set the raw rate."""
        with torch.no_grad():
            family.raw_rate.copy_(values[0])

    def _counts(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """k = 0 … size−1 and log k!, `(size,)` each; made once."""
        key = (size, device)
        if key not in self._counted:
            counts = torch.arange(size, dtype=torch.float64, device=device)
            self._counted[key] = counts, torch.lgamma(counts + 1)
        return self._counted[key]

    def _move(self, like: Tensor) -> None:
        if self._quantiles.device != like.device:
            self._quantiles = self._quantiles.to(like.device)
            self._limits = self._limits.to(like.device)


class ConwayMaxwellStack(TruncatedPoissonStack):
    """`TruncatedConwayMaxwell` of many members; concentrations may differ too."""

    def __init__(self, families: Sequence[TruncatedConwayMaxwell]):
        super().__init__(families)  # type: ignore[arg-type]
        self._nus = [f.concentration for f in families]  # host reads, here alone
        self._least = min(self._nus)
        self._concentrations = torch.tensor(self._nus, dtype=torch.float64)[:, None]

    def max_depths(self, values: Tensor, size: int) -> Tensor:
        """1 + the number of counts k with P(X ≤ k) < δ, by summing."""
        self._move(values)
        # Far enough beyond `size` for what is left out not to matter, if all is well: a member
        # whose support ends beyond `size` is only told to be so.
        far = size + math.ceil(9 * math.sqrt(size / self._least) + 50 / self._least)
        below = self.scores(values.detach(), far).softmax(1).cumsum(1)[:, :size]
        depths = 1 + (below < self._quantiles[:, None]).sum(1)
        return torch.minimum(depths, self._limits).long()

    def scores(self, values: Tensor, size: int) -> Tensor:
        """ν times those of the Poisson."""
        self._move(values)
        return self._concentrations * super().scores(values, size)

    def backward(self, values: Tensor, grad: Tensor) -> Tensor:
        """Likewise."""
        self._move(values)
        return super().backward(values, self._concentrations * grad)

    def reach_exactly(self, values: Tensor, movement: Tensor) -> int:
        """The same from the lone family's quantile."""
        rates = F.softplus(values[:, 0].double() + movement).tolist()
        return max(
            min(
                1 + conway_maxwell_quantile(rate, nu, f.quantile),
                f.limit or (1 << 62),
            )
            for f, nu, rate in zip(self.families, self._nus, rates, strict=True)
        )

    def _move(self, like: Tensor) -> None:
        super()._move(like)
        self._concentrations = self._concentrations.to(like.device)


class FixedDepthStack(DepthStack):
    """`FixedDepth` of many members, each with its own depth."""

    def __init__(self, families: Sequence[FixedDepth]):
        super().__init__(families)
        self._depths = torch.tensor([f.depth for f in families])

    def bounds(self) -> list[int | None]:
        """The depth itself."""
        return [family.depth for family in self.families]

    def max_depths(self, values: Tensor, size: int) -> Tensor:
        """The depth itself."""
        self._depths = self._depths.to(values.device)
        return self._depths

    def scores(self, values: Tensor, size: int) -> Tensor:
        """0 at the depth, no mass elsewhere."""
        depths = torch.arange(1, size + 1, device=values.device)
        hit = depths == self.max_depths(values, size)[:, None]
        return torch.zeros_like(hit, dtype=torch.float64).masked_fill(~hit, NO_MASS)


class FiniteDepthStack(DepthStack):
    """`FiniteDepth` of many members with one largest depth."""

    def __init__(self, families: Sequence[FiniteDepth]):
        super().__init__(families)
        self.largest = families[0].max_depth()
        self.num_parameters = self.largest  # type: ignore[misc]
        self._depths = torch.full((len(families),), self.largest)

    @classmethod
    def key(cls, family: FiniteDepth) -> tuple[Any, ...]:
        """The largest depth is a shape, so it must agree."""
        return (type(family).__name__, family.max_depth())

    def bounds(self) -> list[int | None]:
        """The largest depth."""
        return [self.largest] * len(self.families)

    def max_depths(self, values: Tensor, size: int) -> Tensor:
        """The largest depth, whatever the probabilities are."""
        self._depths = self._depths.to(values.device)
        return self._depths

    def scores(self, values: Tensor, size: int) -> Tensor:
        """The logits."""
        return F.pad(values.double(), (0, size - self.largest), value=NO_MASS)

    def backward(self, values: Tensor, grad: Tensor) -> Tensor:
        """Those of the depths that there are."""
        return grad[:, : self.largest]

    def values(self) -> Tensor:
        """The logits, `(members, largest)`."""
        return torch.stack([f.logits.detach().cpu() for f in self.families])

    def write(self, family: FiniteDepth, values: Tensor) -> None:
        """Set the logits."""
        with torch.no_grad():
            family.logits.copy_(values)


STACKS: dict[type[DepthFamily], type[DepthStack]] = {
    TruncatedPoisson: TruncatedPoissonStack,
    TruncatedConwayMaxwell: ConwayMaxwellStack,
    FixedDepth: FixedDepthStack,
    FiniteDepth: FiniteDepthStack,
}
"""The stacked form of each family; add your own family's here."""


def stack_of(family: DepthFamily) -> type[DepthStack]:
    """The stacked form of a family, or an error that says how to supply one."""
    if type(family) not in STACKS:
        known = ", ".join(sorted(cls.__name__ for cls in STACKS))
        raise TypeError(
            f"{type(family).__name__} has no stacked form, which a population needs (there are "
            f"{known}): write a DepthStack and enter it in unbounded.engine.depths.STACKS"
        )
    return STACKS[type(family)]
