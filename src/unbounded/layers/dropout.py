"""Dropout of whole channels whose masks need no generator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unbounded.layers.base import CountsBatches
from unbounded.layers.scrambling import scrambled, uniform

_process = 0  # not of a thread: gradients on a GPU are computed by one of their own


class ChannelDropout(CountsBatches):
    """Channels are zero with probability `share`, the others larger by 1 / (1 − share).

    Each row of a batch has a mask of its own, all places of a row have one: an image's pixels, or
    the tokens of a sequence (Gal and Ghahramani, 2016). Which channels is a function of a salt that
    is drawn at birth and of how many batches were seen: no generator is asked, so that a step can
    be captured, and a run resumes with the same masks. Processes that share a batch have masks of
    their own (`rows_of`).

    Args:
        share: of the channels, that is left out.
        dim: which dimension goes over the channels. The first goes over the rows.
    """

    def __init__(self, share: float, dim: int = 1):
        super().__init__()
        self.share, self.dim = checked_share(share), dim
        self.salt: Tensor
        self.register_buffer("salt", torch.randint(2**62, ()))

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, …)` → the same, as it is where this is not in training mode."""
        if not self.training:
            return input
        self.seen += 1
        shape = [1] * input.dim()
        shape[0], shape[self.dim] = rows, channels = input.shape[0], input.shape[self.dim]
        key = self.salt + self.seen + (_process << 48)
        kept = _kept(key, rows * channels, self.share)
        scale = kept.to(input.dtype) / (1 - self.share)
        return input * scale.view(shape)


@contextmanager
def rows_of(process: int) -> Iterator[None]:
    """In this block batches are the part of a process, by its number among those that share them.

    Where it also is backwards, layers that are computed again find their masks.
    """
    global _process
    before, _process = _process, process
    try:
        yield
    finally:
        _process = before


def checked_share(share: float) -> float:
    """A share of channels to leave out; a ValueError if it is none."""
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share!r}")
    return share


# An operator of its own: a compiler that saw inside would compute the mask again for the gradients,
# from a count that has gone on by then.
@torch.library.custom_op("unbounded::kept_channels", mutates_args=())
def _kept(key: Tensor, count: int, share: float) -> Tensor:
    """Keys of any shape ↦ which of so many places stay, `(…, count)`."""
    places = torch.arange(count, device=key.device)
    return uniform(places + scrambled(key)[..., None]) >= share


@_kept.register_fake
def _(key: Tensor, count: int, share: float) -> Tensor:
    return key.new_empty((*key.shape, count), dtype=torch.bool)


@_kept.register_vmap
def _(info: Any, in_dims: Any, key: Tensor, count: int, share: float) -> tuple[Tensor, int]:
    return _kept(key.movedim(in_dims[0], 0), count, share), 0
