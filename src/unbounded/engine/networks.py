"""The networks of many members at once: outputs `(depth, member, batch, *event)` and gradients.

`DenseStack` is written out by hand for `Dense` layers: batched products, in buffers that stay
where they are. `VmapStack` takes any layers that `torch.func.vmap` takes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unbounded.engine.blocks import Block
from unbounded.layers import Dense, Layers


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


class DenseStack(NetworkStack):
    """`Dense` layers with ReLU or tanh, forward and backward by batched matrix products."""

    layers: Dense

    @staticmethod
    def takes(layers: Layers) -> bool:
        """Whether these layers are of the kind that is written out here."""
        return type(layers) is Dense and layers.activation in ("relu", "tanh")

    def allocate(self, extent: Extent, blocks: Sequence[Block], templates: Templates) -> None:
        """Buffers of the old depth are let go."""
        super().allocate(extent, blocks, templates)
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._named: dict[tuple[int, int, str], dict[str, Tensor]] = {}
        self._input: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states stay in a buffer for `backward`."""
        extent, out_features = self.extent, self.layers.out_features
        self._input = x
        states = self._buffer("states", x, (extent.depth, *x.shape[:2], self.layers.width))
        state = x
        for level, count in enumerate(extent.counts, 1):
            weight, bias = self._hidden(level, "value", count)
            state = torch.baddbmm(
                bias.unsqueeze(1), state[:count], weight.mT, out=states[level - 1, :count]
            )
            self._activate(state)
        if self._joint(x):
            weight, bias = self._all_heads("value")
            outputs = self._buffer("joint", x, (weight.shape[0], out_features, x.shape[1]))
            torch.baddbmm(bias.unsqueeze(2), weight, states.flatten(0, 1).mT, out=outputs)
            return outputs.mT.unflatten(0, (extent.depth, extent.members))
        # (depth, class, member, batch) in memory: all rows of a class side by side, which the
        # softmax of many rows over few classes likes best.
        outputs = self._buffer("outputs", x, (extent.depth, out_features, *x.shape[:2]))
        for level in range(1, extent.depth + 1):
            rows = extent.heads(level)
            if rows is not None:
                weight, bias = self._head(level, "value", rows)
                found = torch.baddbmm(bias.unsqueeze(2), weight, states[level - 1, rows].mT)
                outputs[level - 1, :, rows].copy_(found.transpose(0, 1))
        return outputs.permute(0, 2, 3, 1)

    @torch.no_grad()
    def backward(self, grad: Tensor, active: Tensor) -> None:
        """The chain rule, layer by layer, from the deepest to the first."""
        extent, x = self.extent, self._input
        assert x is not None
        shape = (*x.shape[:2], self.layers.width)
        states = self._buffer("states", x, (extent.depth, *shape))
        joint = self._joint(x)
        if joint:
            signals = self._buffer("signals", x, (extent.depth, *shape))
            self._all_heads_backward(grad, states, signals)
        else:
            signals = self._buffer("turns", x, (2, *shape))
            if self.layers.shares_head:
                for tensor in self._head(1, "grad", slice(0, extent.members)):
                    tensor.zero_()
        behind = None  # the gradient in the layer behind, before its weights
        for level in range(extent.depth, 0, -1):
            count = extent.counts[level - 1]
            signal = signals[level - 1 if joint else level % 2]
            if not joint:
                self._head_backward(level, grad[level - 1], states[level - 1], signal)
            signal = signal[:count]
            if behind is not None:
                weight, _ = self._hidden(level + 1, "value", behind.shape[0])
                signal[: behind.shape[0]].baddbmm_(behind, weight)
            self._activate_backward(signal, states[level - 1, :count])
            weight_grad, bias_grad = self._hidden(level, "grad", count)
            _store(weight_grad, signal.mT, (x if level == 1 else states[level - 2])[:count])
            torch.sum(signal, 1, out=bias_grad)
            behind = signal

    def _all_heads_backward(self, grad: Tensor, states: Tensor, signals: Tensor) -> None:
        flat = grad.flatten(0, 1)
        weight, _ = self._all_heads("value")
        torch.bmm(flat, weight, out=signals.flatten(0, 1))
        weight_grad, bias_grad = self._all_heads("grad")
        _store(weight_grad, flat.mT, states.flatten(0, 1))
        torch.sum(flat, 1, out=bias_grad)

    def _head_backward(self, level: int, grad: Tensor, states: Tensor, signal: Tensor) -> None:
        """The head's part of one depth; members without a head there get zeros."""
        rows = self.extent.heads(level)
        signal[: self.extent.starts[level - 1]].zero_()
        if rows is None:
            return
        weight, _ = self._head(level, "value", rows)
        weight_grad, bias_grad = self._head(level, "grad", rows)
        piece = grad[rows]
        torch.bmm(piece, weight, out=signal[rows])
        if self.layers.shares_head:
            weight_grad += torch.bmm(piece.mT, states[rows])
            bias_grad += piece.sum(1)
        else:
            _store(weight_grad, piece.mT, states[rows])
            torch.sum(piece, 1, out=bias_grad)

    @torch.no_grad()
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """The same without keeping hidden states: two buffers take turns."""
        extent, members, batch = self.extent, *x.shape[:2]
        shape = (members, extent.depth, self.layers.out_features, batch)
        outputs = self._buffer("scored", x, shape)
        turns = self._buffer("turns", x, (2, members, batch, self.layers.width))
        state = x
        for level, count in enumerate(extent.counts, 1):
            weight, bias = self._hidden(level, source, count)
            state = torch.baddbmm(
                bias.unsqueeze(1), state[:count], weight.mT, out=turns[level % 2, :count]
            )
            self._activate(state)
            rows = extent.heads(level)
            if rows is not None:
                weight, bias = self._head(level, source, rows)
                outputs[rows, level - 1] = torch.baddbmm(bias.unsqueeze(2), weight, state[rows].mT)
        return outputs.permute(1, 0, 3, 2)

    def _joint(self, x: Tensor) -> bool:
        """Whether the heads of all depths are one product: fewer kernels for a GPU."""
        return x.is_cuda and self.extent.uniform and not self.layers.shares_head

    def _hidden(self, level: int, source: str, count: int) -> tuple[Tensor, Tensor]:
        """Weight `(count, out, in)` and bias `(count, out)` from the blocks' tensor `source`."""
        named = self._views(*self.hidden[level], source)
        return named["weight"][:count], named["bias"][:count]

    def _head(self, level: int, source: str, rows: slice) -> tuple[Tensor, Tensor]:
        named = self._views(*self.heads[1 if self.layers.shares_head else level], source)
        return named["weight"][rows], named["bias"][rows]

    def _all_heads(self, source: str) -> tuple[Tensor, Tensor]:
        """Weights and biases of all heads, members along the same axis as depths."""
        block, _ = self.heads[1]
        named = block.shape.unpack(getattr(block, source).flatten(0, 1))
        return named["weight"], named["bias"]

    def _views(self, block: Block, row: int, source: str) -> dict[str, Tensor]:
        """One row's parameters by name; views are made once until the blocks' tensors change."""
        key = (id(block), row, source)
        if key not in self._named:
            self._named[key] = block.shape.unpack(getattr(block, source)[row])
        return self._named[key]

    def _activate(self, state: Tensor) -> None:
        if self.layers.activation == "relu":
            state.relu_()
        else:
            state.tanh_()

    def _activate_backward(self, signal: Tensor, state: Tensor) -> None:
        if self.layers.activation == "relu":
            torch.ops.aten.threshold_backward.grad_input(signal, state, 0, grad_input=signal)
        else:
            torch.ops.aten.tanh_backward.grad_input(signal, state, grad_input=signal)

    def _buffer(self, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor that stays at its place in memory."""
        key = (name, x.shape[1])
        if key not in self._buffers:
            # Zeros: members without some depth leave their part of it untouched.
            self._buffers[key] = x.new_zeros(shape)
        return self._buffers[key]


class VmapStack(NetworkStack):
    """Any layers that `torch.func.vmap` takes, with autograd for the gradients."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        self._fixed: dict[tuple[str, int], dict[str, Tensor]] = {}
        self._graph: tuple[Tensor, list[Tensor]] | None = None

    def set_fixed(self, role: str, depth: int, tensors: dict[str, Tensor]) -> None:
        """Buffers and untrained parameters of one depth, each `(members, …)`."""
        self._fixed[role, depth] = tensors

    def has_fixed(self, role: str, depth: int) -> bool:
        """Whether that depth has its buffers already."""
        return (role, depth) in self._fixed

    def allocate(self, extent: Extent, blocks: Sequence[Block], templates: Templates) -> None:
        """Remember which blocks there are."""
        super().allocate(extent, blocks, templates)
        self._blocks = [b for b in blocks if b.role in ("hidden", "heads")]

    def forward(self, x: Tensor) -> Tensor:
        """Buffers (running statistics) move; `backward` takes the inactive ones back."""
        self._before = {
            key: {name: t.clone() for name, t in tensors.items()}
            for key, tensors in self._fixed.items()
        }
        leaves = [block.value.detach().requires_grad_() for block in self._blocks]
        with torch.enable_grad():
            outputs = self._run(x, leaves, train=True)
        self._graph = outputs, leaves
        return outputs.detach()

    def backward(self, grad: Tensor, active: Tensor) -> None:
        """By autograd."""
        assert self._graph is not None
        outputs, leaves = self._graph
        grads = torch.autograd.grad(outputs, leaves, grad, allow_unused=True)
        for block, found in zip(self._blocks, grads, strict=True):
            if found is None:
                block.grad.zero_()
            else:
                block.grad.copy_(found)
        self._graph = None
        for (role, depth), tensors in self._fixed.items():
            row = 0 if role == "heads" and self.layers.shares_head else depth - 1
            for name, tensor in tensors.items():
                kept = active[row].view(-1, *[1] * (tensor.dim() - 1))
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

    def module_buffers(self, role: str, depth: int, member: int) -> dict[str, Tensor]:
        """One member's row of them."""
        return {k: v[member] for k, v in self._fixed.get((role, depth), {}).items()}

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
        event = next(o.shape for o in outputs if o.numel())
        return torch.stack([o if o.numel() else x.new_zeros(event) for o in outputs])

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


def _store(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target = left @ right, where target is a view into packed rows."""
    if target.is_cuda:
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))  # faster than strided output with several threads


def network_stack(layers: Layers) -> NetworkStack:
    """The fastest kind that takes these layers."""
    return DenseStack(layers) if DenseStack.takes(layers) else VmapStack(layers)
