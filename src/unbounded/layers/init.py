"""Initialisations of linear layers, by name or as a callable."""

from collections.abc import Callable

import torch
from torch import nn

Init = Callable[[nn.Linear], None]


def torch_default(linear: nn.Linear) -> None:
    """Leave what `nn.Linear` draws: U(−1/√fan_in, 1/√fan_in), as for the paper's numbers."""


def he(linear: nn.Linear) -> None:
    """Normal with variance 2/fan_in and no bias: keeps the scale of a ReLU network at any depth."""
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def zero(linear: nn.Linear) -> None:
    """All zeros: the last linear map of a residual block that starts as the identity."""
    with torch.no_grad():
        linear.weight.zero_()
        if linear.bias is not None:
            linear.bias.zero_()


INITS: dict[str, Init] = {"default": torch_default, "he": he}


def resolve(init: str | Init) -> Init:
    """The callable that a name stands for; callables pass through."""
    if callable(init):
        return init
    if init not in INITS:
        raise ValueError(f"init must be a callable or one of {sorted(INITS)}, got {init!r}")
    return INITS[init]
