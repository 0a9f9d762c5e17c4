"""Linear heads of many depths as one batched product."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unbounded.layers.base import LayerError


def linear_heads(states: Sequence[Tensor], heads: Sequence[nn.Linear], first: int) -> Tensor:
    """Ω of linear heads of one shape, a state each: `(depth, batch, out)`.

    In memory it is `(depth, out, batch)`: what follows is a softmax over few classes, which is
    several times faster along a strided axis.

    Args:
        states: h_first, …, `(batch, width)` each.
        heads: o_first, …, with biases.
        first: the depth of the first, for errors.
    """
    weight = heads[0].weight
    if weight.shape[1] != states[0].shape[1]:
        raise LayerError(
            f"head {first} takes {weight.shape[1]} features, "
            f"layer {first} gives {tuple(states[0].shape)}"
        )
    parameters = [p for head in heads for p in (head.weight, head.bias)]
    # In full precision whatever the layers run in: the heads' share of the work is small.
    with torch.autocast(weight.device.type, enabled=False):
        outputs: Tensor = _LinearHeads.apply(len(heads), *states, *parameters)
    return outputs


class _LinearHeads(torch.autograd.Function):
    """Left to autograd the products of the backward pass would be of shapes that are slow."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        weights = torch.stack(tensors[count::2])  # (depth, out, width)
        states = torch.stack(tensors[:count])  # (depth, batch, width)
        ctx.dtype = states.dtype
        states = states.to(weights.dtype)
        biases = torch.stack(tensors[count + 1 :: 2])
        ctx.save_for_backward(states, weights)
        return torch.baddbmm(biases.unsqueeze(2), weights, states.mT).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weights = ctx.saved_tensors
        rows = grads[0]  # (depth, batch, out)
        by_class = rows.mT.contiguous()
        of_states = torch.bmm(rows, weights).to(ctx.dtype).unbind()
        of_weights = torch.bmm(by_class, states).unbind()
        of_biases = by_class.sum(2).unbind()
        pairs = [g for pair in zip(of_weights, of_biases, strict=True) for g in pair]
        return None, *of_states, *pairs
