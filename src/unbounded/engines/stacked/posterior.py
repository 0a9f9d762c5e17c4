"""q(ℓ; λ) of all members: a family's own functions on the numbers of many members at once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unbounded.depth import NO_MASS, DepthFamily
from unbounded.layers.stacks import ParameterBlock, Shape, pack
from unbounded.model import UDN

MakeBlock = Callable[[str, Shape, slice], ParameterBlock]


class FamilyRun(NamedTuple):
    """Neighbouring members whose families differ in λ alone."""

    family: DepthFamily  # stands for all
    members: slice
    block: ParameterBlock | None  # λ; None where there is nothing to learn
    constants: dict[str, Tensor]  # buffers and parameters that are not trained, (members, …)

    def numbers(self, row: Tensor | None) -> dict[str, Tensor]:
        """λ by name, `(members, …)`, from a row of the block `(members, size)`."""
        if self.block is None or row is None:
            return self.constants
        return self.constants | self.block.shape.unpack(row)


class DepthPosteriors:
    """The depth posteriors of members that are sorted by `reach_order`."""

    def __init__(self, models: Sequence[UDN], make_block: MakeBlock, device: torch.device):
        self.runs: list[FamilyRun] = []
        start = 0
        while start < len(models):
            stop = start + 1
            while stop < len(models) and _key(models[stop]) == _key(models[start]):
                stop += 1
            members = slice(start, stop)
            families = [model.depth for model in models[members]]
            shape, block = Shape.of(families[0]), None
            if shape.size:
                block = make_block("depth", shape, members)
                block.extend([1], [lambda member: pack(models[member].depth)])
            constants = {
                name: torch.stack([family.numbers()[name].detach() for family in families])
                for name in families[0].numbers()
                if name not in shape.names
            }
            constants = {name: tensor.to(device) for name, tensor in constants.items()}
            self.runs.append(FamilyRun(families[0], members, block, constants))
            start = stop

    @property
    def looks_ahead(self) -> bool:
        """Whether all families can tell how far their supports may get."""
        return all(run.family.looks_ahead for run in self.runs)

    def rows(self, source: str = "value") -> list[Tensor | None]:
        """λ of each run, `(members, numbers)`, from the blocks' tensor of that name."""
        return [None if r.block is None else getattr(r.block, source)[0] for r in self.runs]

    def ends(self, rows: Sequence[Tensor | None], size: int) -> Tensor:
        """m(q) of each member, `(members,)`; above `size`, any number above it."""
        pairs = zip(self.runs, rows, strict=True)
        return torch.cat([run.family.end(run.numbers(row), size) for run, row in pairs])

    def log_q(self, rows: Sequence[Tensor | None], support: Tensor) -> Tensor:
        """log q(ℓ) renormalised over the support, `(members, depth)`, `NO_MASS` outside of it.

        Args:
            rows: λ of each run.
            support: which depths count, `(members, depth)`.
        """
        size, pairs = support.shape[1], zip(self.runs, rows, strict=True)
        scores = torch.cat([run.family.scores(run.numbers(row), size) for run, row in pairs])
        return scores.masked_fill(~support, NO_MASS).log_softmax(1)

    def reach(self, movement: Tensor, size: int) -> Tensor:
        """The largest m(q) of each member while no λ moves by more than `movement`, `(members,)`.

        Above `size`, any number above it.
        """
        pairs = zip(self.runs, self.rows(), strict=True)
        each = [
            run.family.reach(run.numbers(row), movement[run.members], size) for run, row in pairs
        ]
        return torch.cat(each)

    def reach_exactly(self, movement: Tensor) -> list[int]:
        """The same however large it is, read by the host."""
        size = 64
        while (largest := max(found := self.reach(movement, size).tolist())) > size:
            size = max(2 * size, largest)
        return found


def reach_order(models: Sequence[UDN]) -> tuple[list[int], list[int | None]]:
    """An order of the members in which deeper ones come first, and their bounds in it.

    A layer then runs on a leading part of the members.
    """
    bounds = [model.depth.bound for model in models]

    def key(index: int) -> tuple[float, str]:
        bound = bounds[index]
        return (float("-inf") if bound is None else -bound), str(_key(models[index]))

    order = sorted(range(len(models)), key=key)
    return order, [bounds[index] for index in order]


def _key(model: UDN) -> tuple[object, ...]:
    """Members with equal keys can share the functions of one family."""
    family = model.depth
    shapes = {name: tuple(tensor.shape) for name, tensor in family.numbers().items()}
    return type(family).__qualname__, id(type(family)), family.settings(), shapes
