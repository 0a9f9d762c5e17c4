"""Dropout of channels, in training and, as Gal and Ghahramani (2016) propose, in predictions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from unbounded.layers import Layers
from unbounded.layers.dropout import ChannelDropout as ChannelDropout
from unbounded.layers.dropout import checked_share

PLACES = ("head", "blocks")


class Dropped(Layers):
    """Other layers for images, with whole channels left out at random in training.

    Args:
        inner: a generator of layers whose states are `(batch, channel, …)`.
        share: of the channels, that is left out.
        where: before each "head", or behind the "blocks", all layers but the first.
    """

    def __init__(self, inner: Layers, share: float, where: str = "head"):
        if where not in PLACES:
            raise ValueError(f"where must be one of {PLACES}, got {where!r}")
        self.inner, self.share, self.where = inner, checked_share(share), where
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
