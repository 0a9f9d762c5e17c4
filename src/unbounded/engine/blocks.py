"""Parameters of many members, packed so that a handful of kernels update them all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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


def pack(module: nn.Module) -> Tensor:
    """The trainable parameters of a module as one row `(size,)` on the CPU."""
    rows = [p.detach().reshape(-1).cpu() for p in module.parameters() if p.requires_grad]
    return torch.cat(rows) if rows else torch.zeros(0)


def unpack_into(module: nn.Module, row: Tensor) -> None:
    """Give a module the parameters in a row `(size,)`."""
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in Shape.of(module).unpack(row).items():
            named[name].copy_(values)


@dataclass
class Block:
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
    ) -> "Block":
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
