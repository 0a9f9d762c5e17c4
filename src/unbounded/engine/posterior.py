"""q(ℓ; λ) of all members: the stacked families over runs of members that go together."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unbounded.engine.blocks import Block, Shape
from unbounded.engine.depths import NO_MASS, DepthStack, stack_of

if TYPE_CHECKING:
    from unbounded.model import UDN

MakeBlock = Callable[[str, Shape, slice], Block]


class Run(NamedTuple):
    """Neighbouring members with one stacked family."""

    stack: DepthStack
    members: slice
    block: Block | None  # λ; None where there is nothing to learn


class DepthPosteriors:
    """The depth posteriors of members that are sorted by `reach_order`."""

    def __init__(self, models: Sequence["UDN"], make_block: MakeBlock, device: torch.device):
        self._none = torch.zeros(0, device=device)
        self.runs: list[Run] = []
        start = 0
        while start < len(models):
            kind = stack_of(models[start].depth)
            key = _key(models[start])
            stop = start + 1
            while stop < len(models) and _key(models[stop]) == key:
                stop += 1
            stack, members = kind([m.depth for m in models[start:stop]]), slice(start, stop)
            block = None
            if stack.num_parameters:
                shape = Shape(("values",), (torch.Size([stack.num_parameters]),))
                block = make_block("depth", shape, members)
                first = stack.values()
                block.extend([1], [lambda r, v=first, s=start: v[r - s]])  # type: ignore[misc]
            self.runs.append(Run(stack, members, block))
            start = stop

    @property
    def blocks(self) -> list[Block]:
        """The blocks that hold λ."""
        return [run.block for run in self.runs if run.block is not None]

    def values(self, source: str = "value") -> list[Tensor]:
        """λ of each run, `(members, numbers)`, from the blocks' tensor of that name."""
        return [self._none if r.block is None else getattr(r.block, source)[0] for r in self.runs]

    def max_depths(self, values: Sequence[Tensor], size: int) -> Tensor:
        """m(q) of each member, `(members,)`; above `size`, any number above it."""
        pairs = zip(self.runs, values, strict=True)
        return torch.cat([run.stack.max_depths(value, size) for run, value in pairs])

    def log_q(self, values: Sequence[Tensor], support: Tensor) -> Tensor:
        """log q(ℓ) renormalised over the support, `(members, depth)`, `NO_MASS` outside of it.

        Args:
            values: λ of each run.
            support: which depths count, `(members, depth)`.
        """
        pairs = zip(self.runs, values, strict=True)
        scores = torch.cat([run.stack.scores(value, support.shape[1]) for run, value in pairs])
        return scores.masked_fill(~support, NO_MASS).log_softmax(1)

    def backward(self, log_q: Tensor, grad: Tensor) -> None:
        """From ∂/∂log q, `(members, depth)`, to the gradients in the blocks, which are overwritten.

        Where there is no mass the gradient must be 0, as it is for anything that q multiplies.
        """
        total = grad.sum(1, keepdim=True)
        scores = torch.addcmul(grad, log_q.exp(), total, value=-1)  # through the normalisation
        for run, value in zip(self.runs, self.values(), strict=True):
            if run.block is not None:
                run.block.grad[0].copy_(run.stack.backward(value, scores[run.members]))

    def reach(self, movement: Tensor, size: int) -> Tensor:
        """The largest m(q) of all members while no λ moves by more than `movement`, a scalar."""
        pairs = zip(self.runs, self.values(), strict=True)
        each = [run.stack.reach(v, movement[run.members], size).max() for run, v in pairs]
        return torch.stack(each).max()

    def reach_exactly(self, movement: Tensor) -> int:
        """The same however large it is, on the host."""
        pairs = zip(self.runs, self.values(), strict=True)
        return max(run.stack.reach_exactly(v, movement[run.members]) for run, v in pairs)

    def write(self, model: "UDN", block: Block, values: Tensor) -> None:
        """Give one model's family its row `(numbers,)` of a block."""
        run = next(run for run in self.runs if run.block is block)
        run.stack.write(model.depth, values)


def reach_order(models: Sequence["UDN"]) -> tuple[list[int], list[int | None]]:
    """An order of the members in which deeper ones come first, and their bounds in it.

    A layer then runs on a leading part of the members.
    """
    bounds = [stack_of(m.depth)([m.depth]).bounds()[0] for m in models]

    def key(index: int) -> tuple[float, str]:
        bound = bounds[index]
        return (float("-inf") if bound is None else -bound), str(_key(models[index]))

    order = sorted(range(len(models)), key=key)
    return order, [bounds[index] for index in order]


def _key(model: "UDN") -> tuple[object, ...]:
    return stack_of(model.depth).key(model.depth)
