"""Dense layers, forward and backward by hand: of many members by batched products, and of one.

The buffers stay where they are, and with them all the views of them that a pass needs. Views are
made once for each batch size: between small products, making them would take a tenth of the time,
and no second thread can help with that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    head: _Head | None


class _HeadSlopes(NamedTuple):
    """What one depth's heads read and write in a backward pass."""

    rows: slice
    weight: Tensor  # (rows, out, width)
    state: Tensor  # (rows, batch, width)
    signal: Tensor  # (rows, batch, width)
    weight_grad: Tensor  # (rows, out, width)
    bias_grad: Tensor  # (rows, out)


class _Slopes(NamedTuple):
    """What one hidden layer reads and writes in a backward pass. A signal is ∂loss/∂state."""

    signal: Tensor  # (count, batch, out)
    headless: Tensor | None  # the part of the signal that no head writes
    behind: tuple[Tensor, Tensor, Tensor] | None  # this part of it gets signal times weight of ℓ+1
    state: Tensor  # (count, batch, out)
    input: Tensor | None  # (count, batch, in); None for the first layer
    weight_grad: Tensor  # (count, out, in)
    bias_grad: Tensor  # (count, out)
    head: _HeadSlopes | None


class DenseStack(NetworkStack):
    """`Dense` layers with ReLU or tanh, written out by hand."""

    layers: "Dense"

    ACTIVATIONS = ("relu", "tanh")
    """Those that are written out here."""

    def allocate(
        self, extent: Extent, blocks: Sequence[ParameterBlock], templates: Templates
    ) -> None:
        """Buffers of the old depth are let go, and the views of them."""
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
                packed = block.shape.unpack(block.grad)["weight"]
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
            self._forward[key] = self._layers(states, None if joint else found, "value")
        self._run(self._forward[key], x)
        if joint:
            weight, bias = self._all_heads("value")
            torch.baddbmm(
                bias.unsqueeze(2), weight, states.flatten(0, 1).mT, out=found.flatten(0, 1)
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
            states = [turns[level % 2] for level in range(extent.depth)]
            self._forward[key] = self._layers(states, found, source)
        self._run(self._forward[key], x)
        shape = (members, extent.depth, self.layers.out_features, batch)
        outputs = self._buffer("scored", x, shape)
        return outputs.copy_(found.transpose(0, 1)).transpose(2, 3)

    def _run(self, layers: Sequence[_Layer], x: Tensor) -> None:
        activation = str(self.layers.activation)
        for layer in layers:
            before = x[: layer.state.shape[0]] if layer.input is None else layer.input
            forward_layer(before, layer.weight, layer.bias, layer.state, activation)
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
                signal, behind, weight = layer.behind
                signal.baddbmm_(behind, weight)
            before = layer.input
            if before is None:
                before = x[: layer.signal.shape[0]]
            differentiate(layer.signal, layer.state, activation)
            _store(layer.weight_grad, layer.signal.mT, before)
            torch.sum(layer.signal, 1, out=layer.bias_grad)
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
        flat = grad.flatten(0, 1)
        weight, _ = self._all_heads("value")
        torch.bmm(flat, weight, out=signals.flatten(0, 1))
        weight_grad, bias_grad = self._all_heads("grad")
        _store(weight_grad, flat.mT, states.flatten(0, 1))
        torch.sum(flat, 1, out=bias_grad)

    # Views --------------------------------------------------------------------------------

    def _layers(
        self, states: Sequence[Tensor] | Tensor, outputs: Tensor | None, source: str
    ) -> list[_Layer]:
        """The views of a forward pass.

        Args:
            states: where each depth's hidden states go, `(members, batch, width)`.
            outputs: where the heads' outputs go, `(depth, members, out, batch)`; None where they
                are made all at once afterwards.
            source: which of the blocks' tensors holds the weights.
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
            layers.append(_Layer(before, weight.mT, bias.unsqueeze(1), state[:count], head))
        return layers

    def _slopes(self, x: Tensor) -> list[_Slopes]:
        """The views of a backward pass, from the deepest layer to the first."""
        extent, states, joint = self.extent, self._states(x), self._joint(x)
        signals = self._signals(x)
        slopes: list[_Slopes] = []
        for level in range(extent.depth, 0, -1):
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
                reached = slopes[-1].signal.shape[0]
                weight, _ = self._hidden(level + 1, "value", reached)
                behind = signal[:reached], slopes[-1].signal, weight
            slopes.append(
                _Slopes(
                    signal[:count],
                    signal[:start] if start and not joint else None,
                    behind,
                    states[level - 1, :count],
                    None if level == 1 else states[level - 2, :count],
                    *self._grads(*self.hidden[level], slice(0, count)),
                    head,
                )
            )
        return slopes

    def _joint(self, x: Tensor) -> bool:
        """Whether the heads of all depths are one product: fewer kernels for a GPU."""
        return x.is_cuda and self.extent.uniform and not self.layers.shares_head

    def _states(self, x: Tensor) -> Tensor:
        """The hidden states in training, `(depth, members, batch, width)`."""
        shape = (self.extent.depth, *x.shape[:2], self.layers.width)
        return self._buffer("states", x, shape)

    def _found(self, x: Tensor) -> Tensor:
        """The heads' outputs as they are found, `(depth, members, out, batch)`."""
        shape = (self.extent.depth, x.shape[0], self.layers.out_features, x.shape[1])
        return self._buffer("found", x, shape)

    def _signals(self, x: Tensor) -> Tensor:
        """The gradients in them: of all depths where the heads' come first, else of two in turn."""
        shape = (*x.shape[:2], self.layers.width)
        if self._joint(x):
            return self._buffer("signals", x, (self.extent.depth, *shape))
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
        """Weights and biases of all heads, members along the same axis as depths."""
        block, _ = self.heads[1]
        named = block.shape.unpack(getattr(block, source).flatten(0, 1))
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


def forward_layer(
    before: Tensor, weight: Tensor, bias: Tensor, state: Tensor, activation: str
) -> None:
    """state = φ(before · weight + bias), of one network `(batch, …)` or many `(member, batch, …)`.

    Args:
        before: `(…, batch, in)`.
        weight: transposed, `(…, in, out)`.
        bias: `(out,)` or `(member, 1, out)`.
        state: where the result goes, `(…, batch, out)`.
        activation: one of `DenseStack.ACTIVATIONS`.
    """
    (torch.addmm if before.dim() == 2 else torch.baddbmm)(bias, before, weight, out=state)
    if activation == "relu":
        state.relu_()
    else:
        state.tanh_()


def differentiate(signal: Tensor, state: Tensor, activation: str) -> None:
    """∂loss/∂state becomes ∂loss/∂(before · weight + bias), in place."""
    if activation == "relu":
        torch.ops.aten.threshold_backward.grad_input(signal, state, 0, grad_input=signal)
    else:
        torch.ops.aten.tanh_backward.grad_input(signal, state, grad_input=signal)


def _store(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target = left · right."""
    if left.shape[1] > right.shape[2] and not target.is_cuda:
        target.mT.copy_(torch.bmm(right.mT, left.mT))  # several times as fast if `right` is narrow
    else:
        torch.bmm(left, right, out=target)


def dense_outputs(
    x: Tensor, parameters: Sequence[Tensor | None], count: int, first: int, activation: str
) -> Tensor:
    """Ω_ℓ(x) of one network, ℓ = first … last, by the same passes: `(depth, batch, out)`.

    In memory it is `(depth, out, batch)`: what follows is a softmax over few classes, which is
    several times faster along a strided axis.

    Args:
        x: `(batch, in)`.
        parameters: weight and bias of the layers 1 … last, then of the heads first … last.
        count: how many layers there are.
        first: the depth of the first head.
        activation: one of `DenseStack.ACTIVATIONS`.
    """
    outputs: Tensor = _Dense.apply(x, count, first, activation, *parameters)
    return outputs


class _Dense(torch.autograd.Function):
    """The passes of one network as an operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, count: int, first: int, activation: str, *parameters: Tensor
    ) -> Tensor:
        weights, biases = parameters[: 2 * count : 2], parameters[1 : 2 * count : 2]
        states = x.new_empty(count, x.shape[0], weights[0].shape[0])
        before = x
        for weight, bias, state in zip(weights, biases, states.unbind(), strict=True):
            forward_layer(before, weight.t(), bias, state, activation)
            before = state
        of_heads = torch.stack(parameters[2 * count :: 2])
        offsets = torch.stack(parameters[2 * count + 1 :: 2]).unsqueeze(2)
        ctx.first, ctx.activation = first, activation
        ctx.save_for_backward(x, states, of_heads, *weights)
        return torch.baddbmm(offsets, of_heads, states[first - 1 :].mT).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, states, of_heads, *weights = ctx.saved_tensors
        rows, by_class = grads[0], grads[0].mT.contiguous()  # (depth, batch | out, out | batch)
        head_grads = (torch.bmm(by_class, states[ctx.first - 1 :]), by_class.sum(2))
        inputs, each, heads = [x, *states.unbind()], rows.unbind(), of_heads.unbind()
        found: list[Tensor] = []
        signal: Tensor | None = None  # ∂/∂state
        for level in range(len(weights), 0, -1):
            if signal is not None:
                signal = torch.mm(signal, weights[level])
            head = level - ctx.first
            if head >= 0:
                signal = (
                    torch.mm(each[head], heads[head])
                    if signal is None
                    else signal.addmm_(each[head], heads[head])
                )
            assert signal is not None
            differentiate(signal, inputs[level], ctx.activation)
            found += (signal.sum(0), torch.mm(signal.t(), inputs[level - 1]))
        found.reverse()
        for weight_grad, bias_grad in zip(*(g.unbind() for g in head_grads), strict=True):
            found += (weight_grad, bias_grad)
        x_grad = None
        if ctx.needs_input_grad[0] and signal is not None:
            x_grad = torch.mm(signal, weights[0])
        return x_grad, None, None, None, *found
