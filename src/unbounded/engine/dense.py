"""Dense layers of many members, forward and backward by batched matrix products."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unbounded.engine.blocks import Block
from unbounded.engine.stacks import Extent, NetworkStack, Templates
from unbounded.layers import Dense, Layers


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


def _store(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target = left @ right, where target is a view into packed rows."""
    if target.is_cuda:
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))  # faster than strided output with several threads
