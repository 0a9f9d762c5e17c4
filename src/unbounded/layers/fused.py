"""A stack of dense ReLU layers with linear heads, forward and backward written by hand.

Small networks spend their time between operations, not in them. Here all depths share one
buffer for the hidden states, each layer writes straight into it, the heads are one batched
product, and the backward pass folds each head's gradient into the trunk's, and the prior's into
the weights', by the accumulating form of the matrix product. Same numbers as the layers one by
one under autograd, to rounding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Tape(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: Tensor  # (batch, in_features)
    states: Tensor  # (last, batch, width)
    weights: Sequence[Tensor]  # W_1 … W_last
    head_weights: Tensor  # (depth, out, width)
    first: int


def forward(
    x: Tensor, hidden: Sequence[Tensor], heads: Sequence[Tensor], first: int
) -> tuple[Tensor, Tape]:
    """Ω_ℓ(x) for ℓ = first … last of dense ReLU layers with a linear head each.

    Args:
        x: `(batch, in_features)`.
        hidden: W_1, b_1, W_2, b_2, … of the layers 1 … last; W_ℓ is `(width, inputs)`.
        heads: V_first, c_first, …; V_ℓ is `(out, width)`.
        first: the depth of the first head.

    Returns:
        Outputs `(depth, batch, out)`, laid out in memory as `(depth, out, batch)`: what follows
        is a softmax over few classes, which is several times faster along a strided axis.
    """
    weights = hidden[::2]
    states = x.new_empty(len(weights), x.shape[0], weights[0].shape[0])
    state = x
    for weight, bias, out in zip(weights, hidden[1::2], states.unbind(0), strict=True):
        state = torch.addmm(bias, state, weight.t(), out=out).relu_()
    head_weights = torch.stack(list(heads[::2]))
    biases = torch.stack(list(heads[1::2])).unsqueeze(2)
    used = states if first == 1 else states[first - 1 :]
    outputs = torch.baddbmm(biases, head_weights, used.transpose(1, 2))
    return outputs.transpose(1, 2), Tape(x, states, weights, head_weights, first)


def backward(
    grad: Tensor,
    tape: Tape,
    decay: Sequence[float] | None = None,
    input_grad: bool = False,
) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of W_1, b_1, …, V_first, c_first, …, and of x if it is asked for.

    Args:
        grad: of the outputs, `(depth, batch, out)`.
        tape: from `forward`.
        decay: a factor for each layer 1 … last: its W_ℓ times that is added to the gradient of
            W_ℓ (the prior's part); biases and heads are the caller's.
        input_grad: whether the gradient of x is wanted.
    """
    x, states, weights, head_weights, first = tape
    by_class = grad.transpose(1, 2)  # (depth, out, batch)
    used = states if first == 1 else states[first - 1 :]
    head_grads = torch.bmm(by_class, used).unbind(0)
    head_bias_grads = by_class.sum(2).unbind(0)
    inputs = [x, *states.unbind(0)]
    rows, head_rows = grad.unbind(0), head_weights.unbind(0)
    results: list[Tensor] = []
    flow: Tensor | None = None  # gradient in h_ℓ, from the layers behind
    for index in range(len(weights) - 1, -1, -1):
        head = index - first + 1
        if head >= 0:
            if flow is None:
                flow = torch.mm(rows[head], head_rows[head])
            else:
                flow = torch.addmm(flow, rows[head], head_rows[head])
        assert flow is not None
        flow = torch.ops.aten.threshold_backward(flow, inputs[index + 1], 0)
        results.append(flow.sum(0))
        if decay is None:
            results.append(torch.mm(flow.t(), inputs[index]))
        else:
            results.append(torch.addmm(weights[index], flow.t(), inputs[index], beta=decay[index]))
        if index or input_grad:
            flow = torch.mm(flow, weights[index])
        else:
            flow = None
    results.reverse()
    for weight_grad, bias_grad in zip(head_grads, head_bias_grads, strict=True):
        results += (weight_grad, bias_grad)
    return results, flow


def dense_outputs(
    x: Tensor, hidden: Sequence[Tensor], heads: Sequence[Tensor], first: int
) -> Tensor:
    """`forward` as a differentiable operation; arguments and outputs as there."""
    outputs: Tensor = _DenseStack.apply(x, len(hidden), first, *hidden, *heads)
    return outputs


class _DenseStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, first: int, *parameters: Tensor) -> Tensor:
        outputs, tape = forward(x, parameters[:count], parameters[count:], first)
        ctx.first = first
        ctx.save_for_backward(tape.x, tape.states, tape.head_weights, *tape.weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, states, head_weights, *weights = ctx.saved_tensors
        tape = Tape(x, states, weights, head_weights, ctx.first)
        results, x_grad = backward(grads[0], tape, input_grad=ctx.needs_input_grad[0])
        return x_grad, None, None, *results
