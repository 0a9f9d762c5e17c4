"""Dropout of channels, in training and, as Gal and Ghahramani (2016) propose, in predictions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unbounded.layers import Layers

PLACES = ("head", "blocks")


class Dropped(Layers):
    """Other layers for images, with whole channels left out at random in training.

    Args:
        inner: a generator of layers whose states are `(batch, channel, …)`.
        share: of the channels, that is left out.
        where: before each "head", or behind the "blocks", all layers but the first.
    """

    def __init__(self, inner: Layers, share: float, where: str = "head"):
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, got {share!r}")
        if where not in PLACES:
            raise ValueError(f"where must be one of {PLACES}, got {where!r}")
        self.inner, self.share, self.where = inner, share, where
        self.shares_head, self.reference = inner.shares_head, inner.reference
        self.has_fixed_steps = inner.has_fixed_steps

    def hidden(self, depth: int) -> nn.Module:
        """That of the inner layers, perhaps with a dropout behind it."""
        layer = self.inner.hidden(depth)
        if self.where == "head" or depth == 1:
            return layer
        return nn.Sequential(layer, ChannelDropout(self.share))

    def head(self, depth: int) -> nn.Module:
        """That of the inner layers, perhaps with a dropout before it."""
        head = self.inner.head(depth)
        return nn.Sequential(ChannelDropout(self.share), head) if self.where == "head" else head

    def config(self) -> dict[str, Any]:
        """What there is to know of it."""
        inner = {"kind": type(self.inner).__name__, **self.inner.config()}
        return {"inner": inner, "share": self.share, "where": self.where}


class ChannelDropout(nn.Module):
    """Channels are zero with probability `share`, the others larger by 1 / (1 − share).

    Which ones is a function of a salt that is drawn at birth and of how many batches were seen:
    no generator is asked, so that a step can be captured, and a run resumes with the same masks.
    """

    def __init__(self, share: float):
        super().__init__()
        self.share = share
        self.salt: Tensor
        self.seen: Tensor
        self.register_buffer("salt", torch.randint(2**62, ()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, …)` → the same, as it is where this is not in training mode."""
        if not self.training:
            return input
        self.seen += 1
        rows, channels = input.shape[:2]
        places = torch.arange(rows * channels, device=input.device)
        numbers = uniform(places + scrambled(self.salt + self.seen))
        scale = (numbers >= self.share).to(input.dtype) / (1 - self.share)
        return input * scale.view(rows, channels, *[1] * (input.dim() - 2))


def scrambled(numbers: Tensor) -> Tensor:
    """Whole numbers of 64 bits ↦ others that look independent (the finaliser of splitmix64)."""
    numbers = numbers * -7046029254386353131  # 0x9E3779B97F4A7C15: neighbours are far apart
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def uniform(numbers: Tensor) -> Tensor:
    """Whole numbers ↦ numbers that look uniform on [0, 1): their first 24 bits."""
    return _shifted(scrambled(numbers), 40).to(torch.float32) / 2**24


def _shifted(numbers: Tensor, count: int) -> Tensor:
    """To the right, with zeros from the left, as of unsigned numbers."""
    return (numbers >> count) & ((1 << (64 - count)) - 1)


@contextmanager
def dropping(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode whose dropouts drop: each pass leaves out other channels.

    They are the same again next time, and none of training's. Afterwards the model is as it was.
    """
    modes = [(module, module.training) for module in model.modules()]
    dropouts = [module for module in model.modules() if isinstance(module, ChannelDropout)]
    seen = [dropout.seen.clone() for dropout in dropouts]
    model.eval()
    for dropout in dropouts:
        dropout.train()
        dropout.seen.fill_(-(2**40))  # masks that training has not seen
    try:
        yield
    finally:
        for dropout, before in zip(dropouts, seen, strict=True):
            dropout.seen.copy_(before)
        for module, mode in modes:
            module.training = mode
