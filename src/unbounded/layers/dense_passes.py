"""Forward and backward by hand: of a dense layer, plain or pre-norm, and of one plain network."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NORM_EPS = 1e-5
"""What a pre-norm layer adds to the variance."""


class Written(NamedTuple):
    """An activation φ that is written out: how it is applied, and its slope."""

    apply: Callable[[Tensor, Tensor], Any]  # (linear, where φ of it goes), which may be one tensor
    slope: Callable[[Tensor, Tensor, Tensor], Any]  # (signal, kept, where signal · φ′ goes)
    keeps_value: bool  # whether `slope` goes by φ's value; else by what φ was given


_ATEN = torch.ops.aten
WRITTEN = {
    "relu": Written(
        lambda linear, out: torch.clamp_min(linear, 0, out=out),
        lambda signal, kept, out: _ATEN.threshold_backward.grad_input(
            signal, kept, 0, grad_input=out
        ),
        True,
    ),
    "tanh": Written(
        lambda linear, out: torch.tanh(linear, out=out),
        lambda signal, kept, out: _ATEN.tanh_backward.grad_input(signal, kept, grad_input=out),
        True,
    ),
    "silu": Written(
        lambda linear, out: _ATEN.silu.out(linear, out=out),
        lambda signal, kept, out: _ATEN.silu_backward.grad_input(signal, kept, grad_input=out),
        False,
    ),
    "gelu": Written(
        lambda linear, out: _ATEN.gelu.out(linear, out=out),
        lambda signal, kept, out: _ATEN.gelu_backward.grad_input(signal, kept, grad_input=out),
        False,
    ),
}
"""By name."""


class Norm(NamedTuple):
    """What a pre-norm layer, h + φ(W LN(h) + b), writes besides its state."""

    normed: Tensor  # LN(h), (…, batch, width)
    mean: Tensor  # of h, (…, batch, 1)
    rstd: Tensor  # 1 / √(variance of h + ε), (…, batch, 1)
    kept: Tensor  # for the slope of φ, (…, batch, width); may be where the state goes


def forward_layer(
    before: Tensor,
    weight: Tensor,
    bias: Tensor,
    state: Tensor,
    activation: str,
    norm: Norm | None = None,
    kept: Tensor | None = None,
) -> None:
    """state = φ(before · weight + bias), of one network `(batch, …)` or many `(member, batch, …)`.

    Args:
        before: `(…, batch, in)`.
        weight: transposed, `(…, in, out)`.
        bias: `(out,)` or `(member, 1, out)`.
        state: where the result goes, `(…, batch, out)`.
        activation: a key of `WRITTEN`.
        norm: if given, state = before + φ(LN(before) · weight + bias), and this is filled.
        kept: where what the slope of φ needs goes, if there is no norm; the state where it is None.
    """
    source, kept, written = before, state if kept is None else kept, WRITTEN[activation]
    if norm is not None:
        normalise(before, norm, in_one=before.is_cuda)
        source, kept = norm.normed, norm.kept
    (torch.addmm if before.dim() == 2 else torch.baddbmm)(bias, source, weight, out=kept)
    value = kept if written.keeps_value else state
    written.apply(kept, value)
    if norm is not None:
        torch.add(before, value, out=state)


def differentiate(signal: Tensor, kept: Tensor, activation: str, slope: Tensor) -> None:
    """slope = signal · φ′ by what the layer has kept; slope may be the signal itself."""
    WRITTEN[activation].slope(signal, kept, slope)


def normalise(before: Tensor, norm: Norm, in_one: bool = False) -> None:
    """LN(before) and its moments.

    Args:
        before: `(…, batch, width)`.
        norm: where they go.
        in_one: by torch's own operation. That is one kernel for a GPU; a CPU takes two to three
            times as long for it as for its steps one by one.
    """
    width = before.shape[-1]
    if in_one:
        torch.ops.aten.native_layer_norm.out(
            before, [width], None, None, NORM_EPS, out0=norm.normed, out1=norm.mean, out2=norm.rstd
        )
        return
    torch.mean(before, -1, keepdim=True, out=norm.mean)
    torch.sub(before, norm.mean, out=norm.normed)
    torch.linalg.vector_norm(norm.normed, dim=-1, keepdim=True, out=norm.rstd)
    norm.rstd.square_().div_(width).add_(NORM_EPS).rsqrt_()
    norm.normed.mul_(norm.rstd)


def through_norm(signal: Tensor, before: Tensor, norm: Norm) -> Tensor:
    """∂loss/∂before from signal = ∂loss/∂LN(before)."""
    found: Tensor = torch.ops.aten.native_layer_norm_backward(
        signal,
        before,
        [before.shape[-1]],
        norm.mean,
        norm.rstd,
        None,
        None,
        [True, False, False],
    )[0]
    return found


def dense_outputs(
    x: Tensor, parameters: Sequence[Tensor | None], count: int, first: int, activation: str
) -> Tensor:
    """Ω_ℓ(x) of one plain network, ℓ = first … last, by the same passes: `(depth, batch, out)`.

    In memory it is `(depth, out, batch)`: what follows is a softmax over few classes, which is
    several times faster along a strided axis.

    Args:
        x: `(batch, in)`.
        parameters: weight and bias of the layers 1 … last, then of the heads first … last.
        count: how many layers there are.
        first: the depth of the first head.
        activation: a key of `WRITTEN` whose slope goes by its value.
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
            differentiate(signal, inputs[level], ctx.activation, signal)
            found += (signal.sum(0), torch.mm(signal.t(), inputs[level - 1]))
        found.reverse()
        for weight_grad, bias_grad in zip(*(g.unbind() for g in head_grads), strict=True):
            found += (weight_grad, bias_grad)
        x_grad = None
        if ctx.needs_input_grad[0] and signal is not None:
            x_grad = torch.mm(signal, weights[0])
        return x_grad, None, None, None, *found
