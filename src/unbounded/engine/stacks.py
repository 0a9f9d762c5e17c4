"""What the networks of many members have in common: who has which depth, and what is asked."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from unbounded.engine.blocks import Block
from unbounded.layers import Layers


class Extent:
    """Which members have which depth. Members are sorted so that deeper ones come first.

    Attributes:
        depth: how many hidden layers are allocated.
        counts: the members 0 … counts[ℓ−1]−1 can reach depth ℓ.
        starts: no member below starts[ℓ−1] has a head at depth ℓ.
    """

    def __init__(self, bounds: Sequence[int | None], firsts: Sequence[int], depth: int):
        self.depth = depth
        self.members = len(bounds)
        self.counts: list[int] = []
        self.starts: list[int] = []
        for level in range(1, depth + 1):
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
        """Whether every member may have every depth."""
        return min(self.counts) == self.members and max(self.starts) == 0


class NetworkStack(ABC):
    """R networks of one architecture. Reads the parameters from blocks, writes gradients there."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.extent = Extent([], [], 0)

    def allocate(self, extent: Extent, blocks: Sequence[Block], templates: "Templates") -> None:
        """Take note of new layers; called whenever the blocks' tensors were replaced."""
        self.extent = extent
        self.hidden: dict[int, tuple[Block, int]] = {}
        self.heads: dict[int, tuple[Block, int]] = {}
        for block in blocks:
            place = {"hidden": self.hidden, "heads": self.heads}.get(block.role)
            if place is not None:
                place.update({depth: (block, i) for i, depth in enumerate(block.depths)})
        self.templates = templates

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Ω_ℓ(x) in training, `(member, batch, …)` → `(depth, member, batch, *event)`.

        Members without a head at some depth have zeros there. Not connected to autograd.
        """

    @abstractmethod
    def backward(self, grad: Tensor, active: Tensor) -> None:
        """From ∂/∂Ω, shaped like the outputs, to the blocks' `grad`, which is overwritten.

        Args:
            grad: the gradient of the outputs.
            active: which layers are in their member's support, `(depth, member)`.
        """

    @abstractmethod
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """Ω_ℓ(x) in evaluation mode.

        Args:
            x: inputs, `(member, batch, …)`.
            source: "value" or "average": which of the blocks' tensors holds the weights.
        """

    def buffers(self) -> dict[str, Tensor]:
        """Tensors besides parameters that outlive a step, each `(members, …)`, by name."""
        return {}

    def module_buffers(self, role: str, depth: int, member: int) -> dict[str, Tensor]:
        """What one member's module has besides its parameters."""
        return {}


class Templates:
    """One module for each depth and role, to be run with any member's parameters."""

    def __init__(self) -> None:
        self.hidden: dict[int, nn.Module] = {}
        self.heads: dict[int, nn.Module] = {}
