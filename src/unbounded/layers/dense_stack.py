"""Dense layers of many members, forward and backward by hand, with batched products.

The buffers stay where they are, and with them all the views of them that a pass needs. Views are
made once for each batch size: between small products, making them would take a tenth of the time,
and no second thread can help with that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unbounded.layers.dense_passes import (
    WRITTEN,
    Norm,
    differentiate,
    forward_layer,
    through_norm,
)
from unbounded.layers.stacks import Extent, NetworkStack, ParameterBlock, Templates

if TYPE_CHECKING:
    from unbounded.layers.dense import Dense


class _Head(NamedTuple):
    """What one depth's heads read and write in a forward pass; rows are the members with one."""

    weight: Tensor  # (rows, out, width)
    bias: Tensor  # (rows, out, 1)
    state: Tensor  # (rows, width, batch)
    output: Tensor  # (rows, out, batch)


class _Layer(NamedTuple):
    """What one hidden layer reads and writes in a forward pass, for its first `count` members."""

    input: Tensor | None  # (count, batch, in); None for the first layer, which reads x
    weight: Tensor  # (count, in, out)
    bias: Tensor  # (count, 1, out)
    state: Tensor  # (count, batch, out)
    norm: Norm | None  # of a pre-norm layer
    kept: Tensor | None  # of a plain one, where that is not the state
    head: _Head | None


class _HeadSlopes(NamedTuple):
    """What one depth's heads read and write in a backward pass."""

    rows: slice
    weight: Tensor  # (rows, out, width)
    state: Tensor  # (rows, batch, width)
    signal: Tensor  # (rows, batch, width)
    weight_grad: Tensor  # (rows, out, width)
    bias_grad: Tensor  # (rows, out)


class _Sum(NamedTuple):
    """What a pre-norm layer ℓ+1 adds to the way back: around it, and through its norm."""

    signal: Tensor  # of layer ℓ+1, (count, batch, out)
    before: Tensor  # what layer ℓ+1 has read, (count, batch, in)
    norm: Norm
    normed_signal: Tensor  # where ∂loss/∂LN(before) goes, (count, batch, in)


class _Behind(NamedTuple):
    """How the signal of layer ℓ gets what layer ℓ+1 passes back."""

    signal: Tensor  # the part of layer ℓ's that layer ℓ+1 has read
    slope: Tensor  # of layer ℓ+1
    weight: Tensor  # (count, out, in)
    sum: _Sum | None


class _Slopes(NamedTuple):
    """What one hidden layer reads and writes in a backward pass.

    A signal is ∂loss/∂state, a slope is ∂loss/∂(W · input + b).
    """

    signal: Tensor  # (count, batch, out)
    headless: Tensor | None  # the part of the signal that no head writes
    behind: _Behind | None
    kept: Tensor  # for the slope of the activation, (count, batch, out)
    slope: Tensor  # the signal itself, in place, where nothing needs it any more
    input: Tensor | None  # (count, batch, in); None for the first layer
    weight_grad: Tensor  # (count, out, in)
    bias_grad: Tensor  # (count, out)
    head: _HeadSlopes | None


class DenseStack(NetworkStack):
    """`Dense` and `PreNormDense` layers with an activation of `WRITTEN`, written out by hand."""

    layers: "Dense"

    def allocate(
        self, extent: Extent, blocks: Sequence[ParameterBlock], templates: Templates
    ) -> None:
        """Buffers of the old extent are let go, and the views of them."""
        super().allocate(extent, blocks, templates)
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._named: dict[tuple[int, int, str], dict[str, Tensor]] = {}
        self._forward: dict[tuple[str, int], list[_Layer]] = {}
        self._backward: dict[int, list[_Slopes]] = {}
        self._input: Tensor | None = None
        # Products straight into packed rows are slow on a CPU. There the weights' gradients have
        # tensors of their own, from which they are copied for all depths at once.
        self._staged: dict[int, tuple[Tensor, Tensor]] = {}
        for block in blocks:
            adds_up = block.role == "heads" and self.layers.shares_head
            if block.role in ("hidden", "heads") and not (block.grad.is_cuda or adds_up):
                rows = block.grad[: block.rows_up_to(extent.running)]
                packed = block.shape.unpack(rows)["weight"]
                self._staged[id(block)] = packed, packed.new_zeros(packed.shape)

    def outputs(self, x: Tensor) -> Tensor:
        """The passes below as one operation of autograd, which writes gradients to the blocks."""
        anchor = torch.empty(0, device=x.device, requires_grad=True)
        outputs: Tensor = _ByHand.apply(anchor, x, self)
        return outputs.transpose(0, 1)

    def collect(self, active: Tensor) -> None:
        """The backward pass has seen to it."""

    def forward(self, x: Tensor) -> Tensor:
        """`(depth, member, batch, out)`; hidden states stay in a buffer for `backward`."""
        extent = self.extent
        self._input = x
        states = self._states(x)
        found, joint = self._found(x), self._joint(x)
        key = ("value", x.shape[1])
        if key not in self._forward:
            self._forward[key] = self._layers(states, None if joint else found, "value", keeps=True)
        self._run(self._forward[key], x)
        if joint:
            weight, bias = self._all_heads("value")
            torch.baddbmm(
                bias.unsqueeze(2),
                weight,
                states.flatten(0, 1).mT,
                out=found[: extent.running].flatten(0, 1),
            )
            return found.mT
        # (depth, class, member, batch) in memory: all rows of a class side by side, which the
        # softmax of many rows over few classes likes best.
        shape = (extent.depth, self.layers.out_features, *x.shape[:2])
        outputs = self._buffer("outputs", x, shape)
        return outputs.copy_(found.transpose(1, 2)).permute(0, 2, 3, 1)

    @torch.no_grad()
    def evaluate(self, x: Tensor, source: str) -> Tensor:
        """The same without keeping hidden states: two buffers take turns."""
        extent, members, batch = self.extent, *x.shape[:2]
        found = self._found(x)
        key = (f"scored {source}", batch)
        if key not in self._forward:
            turns = self._buffer("turns", x, (2, members, batch, self.layers.width))
            states = [turns[level % 2] for level in range(extent.running)]
            self._forward[key] = self._layers(states, found, source, keeps=False)
        self._run(self._forward[key], x)
        shape = (members, extent.depth, self.layers.out_features, batch)
        outputs = self._buffer("scored", x, shape)
        return outputs.copy_(found.transpose(0, 1)).transpose(2, 3)

    def _run(self, layers: Sequence[_Layer], x: Tensor) -> None:
        activation = str(self.layers.activation)
        for layer in layers:
            before = x[: layer.state.shape[0]] if layer.input is None else layer.input
            forward_layer(
                before, layer.weight, layer.bias, layer.state, activation, layer.norm, layer.kept
            )
            head = layer.head
            if head is not None:
                torch.baddbmm(head.bias, head.weight, head.state, out=head.output)

    @torch.no_grad()
    def backward(self, grad: Tensor) -> None:
        """The chain rule from ∂/∂Ω `(depth, member, batch, out)`, layer by layer."""
        x = self._input
        assert x is not None
        if self._joint(x):
            self._all_heads_backward(grad, self._states(x), self._signals(x))
        elif self.layers.shares_head:
            for tensor in self._views(*self.heads[1], "grad").values():
                tensor.zero_()
        if x.shape[1] not in self._backward:
            self._backward[x.shape[1]] = self._slopes(x)
        slopes, grads, transposed = self._backward[x.shape[1]], grad.unbind(0), grad.mT.unbind(0)
        activation = str(self.layers.activation)
        for level, layer in zip(range(len(slopes), 0, -1), slopes, strict=True):
            if layer.headless is not None:
                layer.headless.zero_()
            if layer.head is not None:
                self._head_backward(layer.head, grads[level - 1], transposed[level - 1])
            if layer.behind is not None:
                _pass_back(layer.behind)
            before = layer.input
            if before is None:
                before = x[: layer.signal.shape[0]]
            differentiate(layer.signal, layer.kept, activation, layer.slope)
            _store(layer.weight_grad, layer.slope.mT, before)
            torch.sum(layer.slope, 1, out=layer.bias_grad)
        for packed, staged in self._staged.values():
            packed.copy_(staged)

    def _head_backward(self, head: _HeadSlopes, grad: Tensor, transposed: Tensor) -> None:
        """The heads of one depth, from ∂/∂Ω `(members, batch, out)` and its transpose."""
        if head.state.shape[0] < grad.shape[0]:
            grad, transposed = grad[head.rows], transposed[head.rows]
        torch.bmm(grad, head.weight, out=head.signal)
        if self.layers.shares_head:
            head.weight_grad.add_(torch.bmm(transposed, head.state))
            head.bias_grad.add_(grad.sum(1))
        else:
            _store(head.weight_grad, transposed, head.state)
            torch.sum(grad, 1, out=head.bias_grad)

    def _all_heads_backward(self, grad: Tensor, states: Tensor, signals: Tensor) -> None:
        flat = grad[: self.extent.running].flatten(0, 1)
        weight, _ = self._all_heads("value")
        torch.bmm(flat, weight, out=signals.flatten(0, 1))
        weight_grad, bias_grad = self._all_heads("grad")
        _store(weight_grad, flat.mT, states.flatten(0, 1))
        torch.sum(flat, 1, out=bias_grad)

    # Views --------------------------------------------------------------------------------

    def _layers(
        self,
        states: Sequence[Tensor] | Tensor,
        outputs: Tensor | None,
        source: str,
        *,
        keeps: bool,
    ) -> list[_Layer]:
        """The views of a forward pass.

        Args:
            states: where each depth's hidden states go, `(members, batch, width)`.
            outputs: where the heads' outputs go, `(depth, members, out, batch)`; None where they
                are made all at once afterwards.
            source: which of the blocks' tensors holds the weights.
            keeps: whether a backward pass follows.
        """
        layers: list[_Layer] = []
        for level, count in enumerate(self.extent.counts, 1):
            weight, bias = self._hidden(level, source, count)
            before = None if level == 1 else states[level - 2][:count]
            state, head = states[level - 1], None
            rows = self.extent.heads(level)
            if rows is not None and outputs is not None:
                head_weight, head_bias = self._head(level, source, rows)
                place = outputs[level - 1, rows]
                head = _Head(head_weight, head_bias.unsqueeze(2), state[rows].mT, place)
            norm = self._norm(level, state[:count], keeps)
            kept = self._kept(level, state[:count]) if keeps and norm is None else None
            layers.append(
                _Layer(before, weight.mT, bias.unsqueeze(1), state[:count], norm, kept, head)
            )
        return layers

    def _slopes(self, x: Tensor) -> list[_Slopes]:
        """The views of a backward pass, from the deepest layer to the first."""
        extent, states, joint = self.extent, self._states(x), self._joint(x)
        signals = self._signals(x)
        slopes: list[_Slopes] = []
        for level in range(extent.running, 0, -1):
            count, start = extent.counts[level - 1], extent.starts[level - 1]
            signal, head, behind = signals[level - 1 if joint else level % 2], None, None
            rows = None if joint else extent.heads(level)
            if rows is not None:
                weight, _ = self._head(level, "value", rows)
                head = _HeadSlopes(
                    rows,
                    weight,
                    states[level - 1, rows],
                    signal[rows],
                    *self._grads(*self.heads[1 if self.layers.shares_head else level], rows),
                )
            if slopes:
                behind = self._behind(level, signal, slopes[-1], states)
            before = None if level == 1 else states[level - 2, :count]
            state = states[level - 1, :count]
            norm = self._norm(level, state, True)
            kept = self._kept(level, state) if norm is None else norm.kept
            slope = signal if norm is None else self._buffer("slopes", x, signal.shape)
            slopes.append(
                _Slopes(
                    signal[:count],
                    signal[:start] if start and not joint else None,
                    behind,
                    state if kept is None else kept,
                    slope[:count],
                    before if norm is None else norm.normed,
                    *self._grads(*self.hidden[level], slice(0, count)),
                    head,
                )
            )
        return slopes

    def _behind(self, level: int, signal: Tensor, above: _Slopes, states: Tensor) -> _Behind:
        """From layer ℓ+1 to the signal of layer ℓ."""
        count = above.signal.shape[0]
        weight, _ = self._hidden(level + 1, "value", count)
        norm, through = self._norm(level + 1, states[level, :count], True), None
        if norm is not None:
            normed_signal = self._buffer("normed signals", signal, signal.shape)[:count]
            through = _Sum(above.signal, states[level - 1, :count], norm, normed_signal)
        return _Behind(signal[:count], above.slope, weight, through)

    def _norm(self, level: int, state: Tensor, keeps: bool) -> Norm | None:
        """What a pre-norm layer writes besides its state; None for a plain one.

        All layers write to one place, unless a backward pass needs what each has written.
        """
        if level == 1 or not self.layers.is_pre_norm:
            return None
        count, (batch, width) = state.shape[0], state.shape[1:]
        kept = (self.extent.running - 1 if keeps else 1, self.extent.members, batch)
        row, name = (level - 2, "kept") if keeps else (0, "passing")
        normed, mean, rstd = (
            self._buffer(f"{name} {what}", state, (*kept, size))[row, :count]
            for what, size in (("normed", width), ("mean", 1), ("rstd", 1))
        )
        own = self._buffer("kept", state, (*kept, width))[row, :count] if keeps else state
        return Norm(normed, mean, rstd, own)

    def _kept(self, level: int, state: Tensor) -> Tensor | None:
        """Where a plain layer keeps what its activation was given, if its slope goes by that."""
        if WRITTEN[str(self.layers.activation)].keeps_value:
            return None
        plain = 1 if self.layers.is_pre_norm else self.extent.running
        shape = (plain, self.extent.members, *state.shape[1:])
        return self._buffer("linear", state, shape)[level - 1, : state.shape[0]]

    def _joint(self, x: Tensor) -> bool:
        """Whether the heads of all depths are one product: fewer kernels for a GPU."""
        return x.is_cuda and self.extent.uniform and not self.layers.shares_head

    def _states(self, x: Tensor) -> Tensor:
        """The hidden states in training, `(running, members, batch, width)`."""
        shape = (self.extent.running, *x.shape[:2], self.layers.width)
        return self._buffer("states", x, shape)

    def _found(self, x: Tensor) -> Tensor:
        """The heads' outputs as they are found, `(depth, members, out, batch)`; 0 if not run."""
        shape = (self.extent.depth, x.shape[0], self.layers.out_features, x.shape[1])
        return self._buffer("found", x, shape)

    def _signals(self, x: Tensor) -> Tensor:
        """The gradients in them: of all depths where the heads' come first, else of two in turn."""
        shape = (*x.shape[:2], self.layers.width)
        if self._joint(x):
            return self._buffer("signals", x, (self.extent.running, *shape))
        return self._buffer("turns", x, (2, *shape))

    def _hidden(self, level: int, source: str, count: int) -> tuple[Tensor, Tensor]:
        """Weight `(count, out, in)` and bias `(count, out)` from the blocks' tensor `source`."""
        named = self._views(*self.hidden[level], source)
        return named["weight"][:count], named["bias"][:count]

    def _head(self, level: int, source: str, rows: slice) -> tuple[Tensor, Tensor]:
        named = self._views(*self.heads[1 if self.layers.shares_head else level], source)
        return named["weight"][rows], named["bias"][rows]

    def _grads(self, block: ParameterBlock, row: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Where the gradients of weights `(rows, out, in)` and biases `(rows, out)` go."""
        named = self._views(block, row, "grad")
        weight = self._staged[id(block)][1][row] if id(block) in self._staged else named["weight"]
        return weight[rows], named["bias"][rows]

    def _all_heads(self, source: str) -> tuple[Tensor, Tensor]:
        """Weights and biases of all heads that run, members along the same axis as depths."""
        block, _ = self.heads[1]
        rows = getattr(block, source)[: self.extent.running]
        named = block.shape.unpack(rows.flatten(0, 1))
        if source == "grad" and id(block) in self._staged:
            return self._staged[id(block)][1].flatten(0, 1), named["bias"]
        return named["weight"], named["bias"]

    def _views(self, block: ParameterBlock, row: int, source: str) -> dict[str, Tensor]:
        """One row's parameters by name; views are made once until the blocks' tensors change."""
        key = (id(block), row, source)
        if key not in self._named:
            self._named[key] = block.shape.unpack(getattr(block, source)[row])
        return self._named[key]

    def _buffer(self, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor that stays at its place in memory."""
        key = (name, x.shape[1])
        if key not in self._buffers:
            # Zeros: members without some depth leave their part of it untouched.
            self._buffers[key] = x.new_zeros(shape)
        return self._buffers[key]


class _ByHand(torch.autograd.Function):
    """A pass of a `DenseStack`. Its parameters are not seen by autograd: an empty tensor is."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, stack: DenseStack) -> Tensor:
        ctx.stack = stack
        return stack.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.stack.backward(grads[0])
        return grads[0].new_zeros(0), None, None


def _pass_back(behind: _Behind) -> None:
    """The signal of a layer, of which its head's part is there, gets that of the layer behind."""
    way = behind.sum
    if way is None:
        behind.signal.baddbmm_(behind.slope, behind.weight)
        return
    torch.bmm(behind.slope, behind.weight, out=way.normed_signal)
    behind.signal.add_(way.signal)
    behind.signal.add_(through_norm(way.normed_signal, way.before, way.norm))


def _store(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target = left · right."""
    if left.shape[1] > right.shape[2] and not target.is_cuda:
        target.mT.copy_(torch.bmm(right.mT, left.mT))  # several times as fast if `right` is narrow
    else:
        torch.bmm(left, right, out=target)
