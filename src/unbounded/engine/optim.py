"""Optimisers for many members at once, each parameter row with its own rate, mask and step count.

Parameters lie in tensors `(rows, members, size)`: one row is what one module holds of one
member. A row outside of its member's support is not moved and its state does not age, as if
its gradient were None in `torch.optim`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """Adam with the arithmetic of `torch.optim.Adam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")
        if not self.betas[0] ** 2 < self.betas[1]:
            raise ValueError(f"betas must satisfy β₁² < β₂ for bounded steps, got {self.betas}")

    @property
    def slots(self) -> int:
        """How many tensors of state there are for each parameter."""
        return 2

    @property
    def longest_step(self) -> float:
        """No step is longer than this times the rate, whatever the gradients are.

        By Cauchy–Schwarz |m| ≤ (1−β₁)/√(1−β₂) · √v · (Σ (β₁²/β₂)^i)^½; the bias correction
        √(1−β₂^t)/(1−β₁^t) is at most its value at t = 1 or its limit, 1.
        """
        first, second = self.betas
        bound = (1 - first) / math.sqrt((1 - second) * (1 - first**2 / second))
        return bound * max(1.0, math.sqrt(1 - second) / (1 - first))

    @torch.no_grad()
    def pace(self, steps: Tensor, active: Tensor, lr: Tensor, dtype: torch.dtype) -> Tensor:
        """How each row moves now, in a form for `update`: `(4, rows, members, 1)`.

        The rows of many blocks can be asked for at once: these numbers are few, and what they
        cost is the calls.

        Args:
            steps: how many steps each row has taken, `(rows, members)`, in double precision;
                the active ones take one more.
            active: which rows take a step now, `(rows, members)`.
            lr: the rate of each, broadcastable to `(rows, members)`, in double precision.
            dtype: of the parameters.
        """
        first, second = self.betas
        taken = active.double()
        steps.add_(taken)
        count = steps.clamp(min=1)  # rows that never moved: any finite number will do
        correction = (1 - second**count).sqrt_()
        size = taken * lr * correction / (1 - first**count)
        parts = [taken * (1 - first), taken * (1 - second), self.eps * correction, size]
        return torch.stack(parts).to(dtype).unsqueeze(-1)

    @torch.no_grad()
    def update(
        self,
        value: Tensor,
        grad: Tensor,
        state: list[Tensor],
        pace: Sequence[Tensor],
        decays: bool = True,
    ) -> None:
        """One step, in place.

        Args:
            value: parameters, `(rows, members, size)`.
            grad: their gradients, likewise; overwritten.
            state: the two moments, likewise.
            pace: of these rows, as `pace` gives it.
            decays: whether weight decay applies.
        """
        average, square = state
        of_average, of_square, eps, size = pace
        if decays and self.weight_decay:
            grad.add_(value, alpha=self.weight_decay)
        average.lerp_(grad, of_average)
        square.lerp_(grad.square_(), of_square)
        # m/(√v/c₂ + ε)·lr/c₁ = m/(√v + ε·c₂)·lr·c₂/c₁ with c the bias corrections.
        torch.sqrt(square, out=grad)
        grad.add_(eps)
        torch.div(average, grad, out=grad)
        value.addcmul_(grad, size, value=-1)


@dataclass(frozen=True)
class SGD:
    """Gradient descent with the arithmetic of `torch.optim.SGD`."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def slots(self) -> int:
        """How many tensors of state there are for each parameter."""
        return 1 if self.momentum else 0

    @property
    def longest_step(self) -> float:
        """A step can be of any length."""
        return math.inf

    @torch.no_grad()
    def pace(self, steps: Tensor, active: Tensor, lr: Tensor, dtype: torch.dtype) -> Tensor:
        """How each row moves now: `(2, rows, members, 1)`; the arguments are those of `Adam`."""
        taken = active.double()
        steps.add_(taken)
        return torch.stack([taken, taken * lr]).to(dtype).unsqueeze(-1)

    @torch.no_grad()
    def update(
        self,
        value: Tensor,
        grad: Tensor,
        state: list[Tensor],
        pace: Sequence[Tensor],
        decays: bool = True,
    ) -> None:
        """One step, in place; the arguments are those of `Adam.update`."""
        taken, size = pace
        if decays and self.weight_decay:
            grad.add_(value, alpha=self.weight_decay)
        if self.momentum:
            (buffer,) = state
            buffer.copy_(torch.where(taken > 0, buffer * self.momentum + grad, buffer))
            grad = grad.add_(buffer, alpha=self.momentum) if self.nesterov else buffer
        value.addcmul_(grad, size, value=-1)


Optimizer = Adam | SGD
