"""The arithmetic of `torch.optim` for many members, row by row.

Each row has its own rate, mask and step count. Parameters lie in tensors `(rows, members, size)`:
one row is what one module holds of one member. A row outside of its member's support is not moved
and its state does not age, as if its gradient were None in `torch.optim`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from unbounded.layers.stacks import ParameterBlock


@dataclass(frozen=True)
class RowAdam:
    """Adam with the arithmetic of `torch.optim.Adam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decouples: ClassVar[bool] = False
    """Whether decay shrinks the parameters beside the gradient, rather than being part of it."""

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
    def coefficients(self, steps: Tensor, active: Tensor, lr: Tensor, dtype: torch.dtype) -> Tensor:
        """How each row moves now, in a form for `update`: `(4 or 5, rows, members, 1)`.

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
        if self.decouples:
            parts.append(1 - taken * lr * self.weight_decay)
        return torch.stack(parts).to(dtype).unsqueeze(-1)

    @torch.no_grad()
    def update(
        self,
        value: Tensor,
        grad: Tensor,
        state: list[Tensor],
        coefficients: Sequence[Tensor],
        decays: bool = True,
    ) -> None:
        """One step, in place.

        Args:
            value: parameters, `(rows, members, size)`.
            grad: their gradients, likewise; overwritten.
            state: the two moments, likewise.
            coefficients: of these rows, as the method of that name gives them.
            decays: whether weight decay applies.
        """
        average, square = state
        of_average, of_square, eps, size, *left = coefficients
        if decays and self.weight_decay:
            if self.decouples:
                value.mul_(left[0])
            else:
                grad.add_(value, alpha=self.weight_decay)
        average.lerp_(grad, of_average)
        square.lerp_(grad.square_(), of_square)
        # m/(√v/c₂ + ε)·lr/c₁ = m/(√v + ε·c₂)·lr·c₂/c₁ with c the bias corrections.
        torch.sqrt(square, out=grad)
        grad.add_(eps)
        torch.div(average, grad, out=grad)
        value.addcmul_(grad, size, value=-1)


@dataclass(frozen=True)
class RowAdamW(RowAdam):
    """Adam with decay beside the gradient, with the arithmetic of `torch.optim.AdamW`."""

    weight_decay: float = 0.01
    decouples: ClassVar[bool] = True


@dataclass(frozen=True)
class RowSGD:
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
    def coefficients(self, steps: Tensor, active: Tensor, lr: Tensor, dtype: torch.dtype) -> Tensor:
        """How each row moves now: `(2, rows, members, 1)`; the arguments are those of `RowAdam`."""
        taken = active.double()
        steps.add_(taken)
        return torch.stack([taken, taken * lr]).to(dtype).unsqueeze(-1)

    @torch.no_grad()
    def update(
        self,
        value: Tensor,
        grad: Tensor,
        state: list[Tensor],
        coefficients: Sequence[Tensor],
        decays: bool = True,
    ) -> None:
        """One step, in place; the arguments are those of `RowAdam.update`."""
        taken, size = coefficients
        if decays and self.weight_decay:
            grad.add_(value, alpha=self.weight_decay)
        if self.momentum:
            (buffer,) = state
            buffer.copy_(torch.where(taken > 0, buffer * self.momentum + grad, buffer))
            grad = grad.add_(buffer, alpha=self.momentum) if self.nesterov else buffer
        value.addcmul_(grad, size, value=-1)


RowOptimizer = RowAdam | RowSGD


def row_optimizer(kind: type[torch.optim.Optimizer], arguments: dict[str, Any]) -> RowOptimizer:
    """The form for rows of a `torch.optim` class with these arguments.

    Raises:
        ValueError: if there is none, in one line.
    """
    known: dict[Any, type[RowAdam] | type[RowSGD]] = {
        torch.optim.Adam: RowAdam,
        torch.optim.AdamW: RowAdamW,
        torch.optim.SGD: RowSGD,
    }
    form = known.get(kind)
    if form is None:
        raise ValueError(
            f"Stacked does not take optimizer={kind.__name__}: it has Adam, AdamW and SGD; "
            "use Eager()"
        )
    plain = {key: value for key, value in arguments.items() if key not in ("fused", "foreach")}
    unknown = sorted(set(plain) - {field.name for field in fields(form)})
    if unknown:
        raise ValueError(f"Stacked does not take {kind.__name__}({unknown[0]}=…): use Eager()")
    return form(**plain)


@dataclass
class _Group:
    """Blocks of the same members."""

    members: slice | None  # None for all
    blocks: list[ParameterBlock]
    steps: Tensor  # (rows of all blocks, members); each block's own is a part of it
    columns: Tensor  # which of the members' choices says whether a row is active, (rows,)
    rates: Tensor  # which of the rates is a row's, (rows,)


class RowCoefficients:
    """The optimiser's numbers for every row of every block.

    Made anew whenever blocks have new rows. The blocks' step counts become parts of one tensor
    for all blocks of the same members.

    Args:
        blocks: of all roles.
        has_head: whether a member has a head at a depth, `(members, depth)`.
        shares_head: whether all depths of a member have one head.
    """

    def __init__(self, blocks: Sequence[ParameterBlock], has_head: Tensor, shares_head: bool):
        self._has_head = has_head
        count, depth = has_head.shape
        by_members: dict[tuple[int, int], list[ParameterBlock]] = {}
        for block in blocks:
            by_members.setdefault((block.members.start, block.members.stop), []).append(block)
        self._groups: list[_Group] = []
        for (start, stop), some in by_members.items():
            columns: list[int] = []
            for block in some:
                always = block.role in ("depth", "likelihood")
                if always or (block.role == "heads" and shares_head):
                    columns += [2 * depth] * len(block.depths)
                else:
                    offset = -1 if block.role == "hidden" else depth - 1
                    columns += [level + offset for level in block.depths]
            rates = [int(block.role == "depth") for block in some for _ in block.depths]
            steps = torch.cat([block.steps for block in some])
            for block, own in zip(some, steps.split([len(b.depths) for b in some]), strict=True):
                block.steps = own
            device = has_head.device
            self._groups.append(
                _Group(
                    None if (start, stop) == (0, count) else slice(start, stop),
                    some,
                    steps,
                    torch.tensor(columns, device=device),
                    torch.tensor(rates, device=device),
                )
            )

    def __call__(
        self, optimizer: RowOptimizer, rates: Tensor, active: Tensor, steps: Tensor
    ) -> Iterator[tuple[ParameterBlock, Sequence[Tensor], Tensor]]:
        """Each block with its coefficients for `update` and its active rows `(rows, members)`.

        Args:
            optimizer: whose they are.
            rates: of the weights and of λ, `(2, members)`.
            active: which depths are in their member's support, `(members, depth)`.
            steps: which members take this step, `(members,)`.
        """
        choices = torch.cat([active, active & self._has_head, steps[:, None]], 1).t()
        for group in self._groups:
            rows, lr = choices.index_select(0, group.columns), rates.index_select(0, group.rates)
            if group.members is not None:
                rows, lr = rows[:, group.members], lr[:, group.members]
            found = optimizer.coefficients(group.steps, rows, lr, group.blocks[0].value.dtype)
            sizes = [len(block.depths) for block in group.blocks]
            parts = zip(found.split(sizes, 1), rows.split(sizes), strict=True)
            for block, (part, moving) in zip(group.blocks, parts, strict=True):
                yield block, part.unbind(0), moving
