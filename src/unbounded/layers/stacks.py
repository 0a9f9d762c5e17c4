"""Many networks of one architecture at once: their parameters, packed, and how they are run.

A member is one of the networks. What a generator of layers may offer is a `NetworkStack` that runs
its own layers faster than the general way: see `Layers.stacked`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unbounded.layers.base import Layers

Fill = Callable[[int], Tensor | None]
"""member ↦ its first numbers `(size,)`, or None where it has no such module."""

BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""The integers that are as wide as the numbers of each kind."""


@dataclass(frozen=True)
class Shape:
    """What a module's parameters look like, in order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Shape":
        """The shape of a module's trainable parameters."""
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named))

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(shape.numel() for shape in self.shapes)

    def unpack(self, row: Tensor) -> dict[str, Tensor]:
        """The parameters by name, `(…, *shape)`, as views of rows `(…, size)`."""
        pieces = row.split([shape.numel() for shape in self.shapes], -1) if self.names else ()
        return {
            name: piece.view((*row.shape[:-1], *shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }


def untrained(module: nn.Module) -> dict[str, Tensor]:
    """Buffers and parameters that are not trained, by name."""
    frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    return frozen | dict(module.named_buffers())


def pack(module: nn.Module) -> Tensor:
    """The trainable parameters of a module as one row `(size,)` on the CPU."""
    rows = [p.detach().reshape(-1).cpu() for p in module.parameters() if p.requires_grad]
    return torch.cat(rows) if rows else torch.zeros(0)


def unpack_into(module: nn.Module, shape: Shape, row: Tensor) -> None:
    """Give a module the parameters in a row `(size,)` of that shape."""
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in shape.unpack(row).items():
            named[name].copy_(values)


@dataclass
class ParameterBlock:
    """Equal modules of the members `start` … `stop`−1: `(rows, members, size)`.

    One row is one depth of a role ("hidden", "heads"), or the only one ("likelihood", "depth").
    """

    role: str
    shape: Shape
    depths: list[int]
    value: Tensor
    grad: Tensor
    state: list[Tensor]
    steps: Tensor  # (rows, members), double: how often each row was moved
    members: slice
    best: Tensor | None = None  # the value at the best epoch
    average: Tensor | None = None  # the moving average of the value

    @classmethod
    def empty(
        cls,
        role: str,
        shape: Shape,
        members: slice,
        slots: int,
        like: Tensor,
        *,
        best: bool,
        average: bool,
    ) -> "ParameterBlock":
        """A block without rows."""

        def rows() -> Tensor:
            return like.new_zeros(0, members.stop - members.start, shape.size)

        return cls(
            role,
            shape,
            [],
            rows(),
            rows(),
            [rows() for _ in range(slots)],
            rows()[..., 0].double() if shape.size else like.new_zeros(0, 0).double(),
            members,
            rows() if best else None,
            rows() if average else None,
        )

    def extend(self, depths: Sequence[int], fills: Sequence[Fill]) -> None:
        """Add rows; every tensor is made anew, since its place in memory changes."""
        count = self.members.stop - self.members.start
        born = self.value.new_zeros(len(depths), count, self.shape.size)
        for row, fill in zip(born, fills, strict=True):
            values = [fill(member) for member in range(self.members.start, self.members.stop)]
            zero = torch.zeros(self.shape.size, dtype=born.dtype)
            row.copy_(torch.stack([zero if v is None else v for v in values]))
        self.depths += depths
        fresh = torch.zeros_like(born)
        self.value = torch.cat([self.value, born])
        self.grad = torch.cat([self.grad, fresh])
        self.state = [torch.cat([tensor, fresh]) for tensor in self.state]
        self.steps = torch.cat([self.steps.reshape(-1, count), fresh[..., :1].sum(2).double()])
        self.best = None if self.best is None else torch.cat([self.best, born])
        self.average = None if self.average is None else torch.cat([self.average, born])

    def rows_up_to(self, level: int) -> int:
        """How many of the rows, which are in order of depth, belong to depths up to `level`."""
        return sum(depth <= level for depth in self.depths)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that outlives a step, by name."""
        yield "value", self.value
        yield "steps", self.steps
        for index, tensor in enumerate(self.state):
            yield f"state{index}", tensor
        if self.best is not None:
            yield "best", self.best
        if self.average is not None:
            yield "average", self.average


class Extent:
    """Which members have which depth. Members are sorted so that deeper ones come first.

    Attributes:
        depth: how many hidden layers are allocated; outputs have as many.
        running: how many of them are run, from the first; all unless said otherwise. No member
            that trains has a depth beyond in its support.
        counts: the members 0 … counts[ℓ−1]−1 can reach depth ℓ, for each ℓ that is run.
        starts: no member below starts[ℓ−1] has a head at depth ℓ, likewise.
    """

    def __init__(
        self,
        bounds: Sequence[int | None],
        firsts: Sequence[int],
        depth: int,
        running: int | None = None,
    ):
        self.depth = depth
        self.running = depth if running is None else running
        self.members = len(bounds)
        self.counts: list[int] = []
        self.starts: list[int] = []
        for level in range(1, self.running + 1):
            reaching = [i for i, b in enumerate(bounds) if b is None or b >= level]
            self.counts.append(len(reaching))
            with_head = [i for i in reaching if firsts[i] <= level]
            self.starts.append(min(with_head, default=len(reaching)))

    def heads(self, level: int) -> slice | None:
        """The members with a head at depth ℓ (and some without), or None if there are none."""
        rows = slice(self.starts[level - 1], self.counts[level - 1])
        return rows if rows.start < rows.stop else None

    @property
    def uniform(self) -> bool:
        """Whether every member may have every depth that is run."""
        return min(self.counts) == self.members and max(self.starts) == 0


class Templates:
    """One module for each depth and role, to be run with any member's parameters."""

    def __init__(self) -> None:
        self.hidden: dict[int, nn.Module] = {}
        self.heads: dict[int, nn.Module] = {}


class NetworkStack(ABC):
    """R networks of one architecture. Reads the parameters from blocks, writes gradients there."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.extent = Extent([], [], 0)

    def allocate(
        self, extent: Extent, blocks: Sequence[ParameterBlock], templates: Templates
    ) -> None:
        """Take note of new layers; called whenever the extent or the blocks' tensors are others."""
        self.extent = extent
        self.hidden: dict[int, tuple[ParameterBlock, int]] = {}
        self.heads: dict[int, tuple[ParameterBlock, int]] = {}
        for block in blocks:
            place = {"hidden": self.hidden, "heads": self.heads}.get(block.role)
            if place is not None:
                place.update({depth: (block, i) for i, depth in enumerate(block.depths)})
        self.templates = templates

    @abstractmethod
    def outputs(self, x: Tensor) -> Tensor:
        """Ω_ℓ(x) in training, `(member, batch, …)` → `(member, depth, batch, *event)`.

        Connected to autograd. Members without a head at some depth have zeros there, as
        all have at depths that are not run.
        """

    @abstractmethod
    def collect(self, active: Tensor) -> None:
        """After the backward pass: the gradients are in the blocks' `grad`, which is overwritten.

        Args:
            active: which layers are in their member's support, `(member, depth)`.
        """

    @abstractmethod
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """Ω_ℓ(x) in evaluation mode, shaped as `outputs`.

        Args:
            x: inputs, `(member, batch, …)`.
            source: "value" or "average": which of the blocks' tensors holds the weights.
        """

    def buffers(self) -> dict[str, Tensor]:
        """Tensors besides parameters that outlive a step, each `(members, …)`, by name."""
        return {}
