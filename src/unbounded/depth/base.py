"""The contract of a depth family."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class DepthFamily(nn.Module, ABC):
    """A family q(ℓ; λ) of distributions over depths, each member with bounded support.

    Definition 1 of the paper asks for three things: every member has bounded support
    (`max_depth` is an int), any depth is the mode of some member (`is_unbounded`), and
    λ is continuous (it is a parameter that the optimiser moves).

    A family of your own implements `max_depth` and `log_probs`; the rest follows.
    """

    is_unbounded: ClassVar[bool] = True
    """Whether every depth is the mode of some member, condition (2) of Definition 1."""

    @abstractmethod
    def max_depth(self) -> int:
        """m(q), the largest depth with mass."""

    @abstractmethod
    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, differentiable in λ."""

    def log_probs_up_to(self, depth: int) -> Tensor:
        """The same with the support held at `depth`, by tensor operations alone: `(depth,)`.

        What a step runs that must not wait for the host to learn λ (a CUDA graph). Families with
        a fixed support have it for free; others override it.
        """
        if self.is_unbounded:
            raise NotImplementedError(
                f"{type(self).__name__} has no log_probs_up_to(depth): train it with "
                "engine=unbounded.engine.Eager()"
            )
        return self.log_probs()

    def backward(self, log_probs: Tensor, grad: Tensor) -> None:
        """Carry a gradient in `log_probs()`, `(max_depth,)`, on to λ's `grad`.

        Autograd does it; a family whose λ is one number may know a shorter way.
        """
        if log_probs.requires_grad:
            log_probs.backward(grad)

    def first_depth(self) -> int:
        """The smallest depth with mass. Heads below it are never created."""
        return 1

    @torch.no_grad()
    def mean(self) -> float:
        """E[ℓ]. For a gradient in λ, take it of `log_probs`."""
        log_probs = self.log_probs().double()
        depths = torch.arange(1, log_probs.numel() + 1, device=log_probs.device)
        return float(log_probs.exp() @ depths.double())

    def mode(self) -> int:
        """The most probable depth (the smallest one where several tie)."""
        return int(self.log_probs().detach().argmax()) + 1

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; λ itself travels as a parameter."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the family to unbounded.load yourself"
        )

    def extra_repr(self) -> str:
        """What `print(model)` says of the current member."""
        return f"E[depth]={self.mean():.3g}, max_depth={self.max_depth()}"
