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
        self._input: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states stay in a buffer for `backward`."""
        extent, width = self.extent, self.layers.width
        self._input = x
        states = self._buffer("states", x, width)
        outputs = self._buffer("outputs", x, self.layers.out_features)
        state = x
        for level, count in enumerate(extent.counts, 1):
            weight, bias = self._hidden(level, "views", count)
            state = torch.baddbmm(
                bias, state[:count], weight.transpose(1, 2), out=states[level - 1, :count]
            )
            self._activate(state)
        if extent.uniform and not self.layers.shares_head:
            weight, bias = self._all_heads("value")
            flat = states.view(-1, *states.shape[2:])
            torch.baddbmm(
                bias, flat, weight.transpose(1, 2), out=outputs.view(-1, *outputs.shape[2:])
            )
            return outputs
        for level in range(1, extent.depth + 1):
            rows = slice(extent.starts[level - 1], extent.counts[level - 1])
            if rows.start < rows.stop:
                weight, bias = self._head(level, "views", rows)
                torch.baddbmm(
                    bias,
                    states[level - 1, rows],
                    weight.transpose(1, 2),
                    out=outputs[level - 1, rows],
                )
        return outputs

    @torch.no_grad()
    def backward(self, grad: Tensor, active: Tensor) -> None:
        """The chain rule, layer by layer, from the deepest to the first."""
        extent, shared = self.extent, self.layers.shares_head
        assert self._input is not None
        x = self._input
        states = self._buffer("states", x, self.layers.width)
        signals = self._buffer("signals", x, self.layers.width)
        if extent.uniform and not shared:
            weight, _ = self._all_heads("value")
            flat_grad = grad.reshape(-1, *grad.shape[2:])
            flat_states = states.view(-1, *states.shape[2:])
            torch.bmm(flat_grad, weight, out=signals.view(-1, *signals.shape[2:]))
            head_weight, head_bias = self._all_heads("grad")
            _store(head_weight, flat_grad.transpose(1, 2), flat_states)
            torch.sum(flat_grad, 1, keepdim=True, out=head_bias)
        else:
            self._heads_backward(grad, states, signals)
        for level in range(extent.depth, 0, -1):
            count = extent.counts[level - 1]
            signal = signals[level - 1, :count]
            self._activate_backward(signal, states[level - 1, :count])
            before = (x if level == 1 else states[level - 2])[:count]
            weight_grad, bias_grad = self._hidden(level, "grad_views", count)
            _store(weight_grad, signal.transpose(1, 2), before)
            torch.sum(signal, 1, keepdim=True, out=bias_grad)
            if level > 1:
                weight, _ = self._hidden(level, "views", count)
                signals[level - 2, :count].baddbmm_(signal, weight)

    def _heads_backward(self, grad: Tensor, states: Tensor, signals: Tensor) -> None:
        extent, shared = self.extent, self.layers.shares_head
        if shared:
            for tensor in self._head(1, "grad_views", slice(0, extent.members)):
                tensor.zero_()
        for level in range(1, extent.depth + 1):
            rows = slice(extent.starts[level - 1], extent.counts[level - 1])
            signals[level - 1, : rows.start].zero_()
            if rows.start >= rows.stop:
                continue
            weight, _ = self._head(level, "views", rows)
            weight_grad, bias_grad = self._head(level, "grad_views", rows)
            piece = grad[level - 1, rows]
            torch.bmm(piece, weight, out=signals[level - 1, rows])
            if shared:
                weight_grad += torch.bmm(piece.transpose(1, 2), states[level - 1, rows])
                bias_grad += piece.sum(1, keepdim=True)
            else:
                _store(weight_grad, piece.transpose(1, 2), states[level - 1, rows])
                torch.sum(piece, 1, keepdim=True, out=bias_grad)

    @torch.no_grad()
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """The same without keeping hidden states."""
        extent = self.extent
        outputs = x.new_zeros(extent.depth, *x.shape[:2], self.layers.out_features)
        state = x
        for level, count in enumerate(extent.counts, 1):
            weight, bias = self._hidden(level, source, count)
            state = torch.baddbmm(bias, state[:count], weight.transpose(1, 2))
            self._activate(state)
            rows = slice(extent.starts[level - 1], count)
            if rows.start < rows.stop:
                weight, bias = self._head(level, source, rows)
                torch.baddbmm(
                    bias, state[rows], weight.transpose(1, 2), out=outputs[level - 1, rows]
                )
        return outputs

    def _hidden(self, level: int, source: str, count: int) -> tuple[Tensor, Tensor]:
        """Weight `(count, out, in)` and bias `(count, 1, out)`, or their gradients."""
        named = _views(*self.hidden[level], source)
        return named["weight"][:count], named["bias"][:count].unsqueeze(1)

    def _head(self, level: int, source: str, rows: slice) -> tuple[Tensor, Tensor]:
        named = _views(*self.heads[1 if self.layers.shares_head else level], source)
        return named["weight"][rows], named["bias"][rows].unsqueeze(1)

    def _all_heads(self, source: str) -> tuple[Tensor, Tensor]:
        """Weights and biases of all heads, members along the same axis as depths."""
        block, _ = self.heads[1]
        rows = getattr(block, source)
        named = block.shape.unpack(rows.view(-1, rows.shape[-1]))
        return named["weight"], named["bias"].unsqueeze(1)

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

    def _buffer(self, name: str, x: Tensor, size: int) -> Tensor:
        key = (name, x.shape[1])
        if key not in self._buffers:
            # Zeros: members without some depth leave their part of it untouched.
            self._buffers[key] = x.new_zeros(self.extent.depth, *x.shape[:2], size)
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


def _views(block: Block, row: int, source: str) -> dict[str, Tensor]:
    """A row's parameters by name: "views" and "grad_views" are kept, others are made."""
    if source in ("views", "grad_views"):
        found: dict[str, Tensor] = getattr(block, source)[block.depths[row]]
        return found
    return block.shape.unpack(getattr(block, source)[row])


def _store(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target = left @ right, where target is a view into packed rows."""
    if target.is_cuda:
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))  # faster than strided output with several threads


def network_stack(layers: Layers) -> NetworkStack:
    """The fastest kind that takes these layers."""
    return DenseStack(layers) if DenseStack.takes(layers) else VmapStack(layers)
