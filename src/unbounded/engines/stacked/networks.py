"""The networks of many members at once, of any layers, by `torch.func.vmap` and autograd."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from unbounded.layers import Layers
from unbounded.layers.stacks import Extent, NetworkStack, ParameterBlock, Templates


class VmapStack(NetworkStack):
    """Any layers that `torch.func.vmap` takes, with autograd for the gradients."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        self._fixed: dict[tuple[str, int], dict[str, Tensor]] = {}
        self._leaves: list[Tensor] = []

    def set_fixed(self, role: str, depth: int, tensors: dict[str, Tensor]) -> None:
        """Buffers and untrained parameters of one depth, each `(members, …)`."""
        self._fixed[role, depth] = tensors

    def allocate(
        self, extent: Extent, blocks: Sequence[ParameterBlock], templates: Templates
    ) -> None:
        """Remember which blocks there are."""
        super().allocate(extent, blocks, templates)
        self._blocks = [b for b in blocks if b.role in ("hidden", "heads")]

    def outputs(self, x: Tensor) -> Tensor:
        """Buffers (running statistics) move; `collect` takes the inactive ones back."""
        self._before = {
            key: {name: t.clone() for name, t in tensors.items()}
            for key, tensors in self._fixed.items()
        }
        self._leaves = [block.value.detach().requires_grad_() for block in self._blocks]
        with torch.enable_grad():
            return self._run(x, self._leaves, train=True)

    def collect(self, active: Tensor) -> None:
        """What autograd found, and statistics of layers outside of the support as they were."""
        for block, leaf in zip(self._blocks, self._leaves, strict=True):
            if leaf.grad is None:
                block.grad.zero_()
            else:
                block.grad.copy_(leaf.grad)
        self._leaves = []
        for (role, depth), tensors in self._fixed.items():
            row = 0 if role == "heads" and self.layers.shares_head else depth - 1
            for name, tensor in tensors.items():
                kept = active[:, row].view(-1, *[1] * (tensor.dim() - 1))
                tensor.copy_(torch.where(kept, tensor, self._before[role, depth][name]))

    @torch.no_grad()
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """In evaluation mode."""
        return self._run(x, [getattr(block, source) for block in self._blocks], train=False)

    def buffers(self) -> dict[str, Tensor]:
        """Running statistics and untrained parameters."""
        return {
            f"{role}.{depth}.{name}": tensor
            for (role, depth), tensors in self._fixed.items()
            for name, tensor in tensors.items()
        }

    def _run(self, x: Tensor, values: Sequence[Tensor], train: bool) -> Tensor:
        extent, shared = self.extent, self.layers.shares_head
        named: dict[tuple[str, int], dict[str, Tensor]] = {}
        for block, value in zip(self._blocks, values, strict=True):
            for depth, row in zip(block.depths, value.unbind(0), strict=True):
                named[block.role, depth] = block.shape.unpack(row)
        outputs: list[Tensor] = []
        state = x
        for level, count in enumerate(extent.counts, 1):
            state = self._call("hidden", level, named, state[:count], 0, train)
            start = extent.starts[level - 1]
            if start < count:
                head = 1 if shared else level
                output = self._call("heads", head, named, state[start:], start, train)
                before = output.new_zeros(start, *output.shape[1:])
                after = output.new_zeros(extent.members - count, *output.shape[1:])
                outputs.append(torch.cat([before, output, after]))
            else:
                outputs.append(x.new_zeros(0))
        outputs += [x.new_zeros(0)] * (extent.depth - extent.running)
        event = next(o.shape for o in outputs if o.numel())
        return torch.stack([o if o.numel() else x.new_zeros(event) for o in outputs], 1)

    def _call(
        self,
        role: str,
        depth: int,
        named: dict[tuple[str, int], dict[str, Tensor]],
        state: Tensor,
        start: int,
        train: bool,
    ) -> Tensor:
        template = getattr(self.templates, role)[depth]
        template.train(train)
        rows = slice(start, start + state.shape[0])
        tensors: dict[str, Any] = {k: v[rows] for k, v in named.get((role, depth), {}).items()}
        tensors |= {k: v[rows] for k, v in self._fixed.get((role, depth), {}).items()}

        def one(tensors: dict[str, Tensor], state: Tensor) -> Any:
            return functional_call(template, tensors, (state,))

        result: Tensor = torch.func.vmap(one, randomness="different")(tensors, state)
        return result
