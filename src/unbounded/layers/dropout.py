"""Dropout of whole channels whose masks need no generator."""

import torch
from torch import Tensor, nn


class ChannelDropout(nn.Module):
    """Channels are zero with probability `share`, the others larger by 1 / (1 − share).

    Each row of a batch has a mask of its own, all places of a row have one: an image's pixels, or
    the tokens of a sequence (Gal and Ghahramani, 2016). Which channels is a function of a salt that
    is drawn at birth and of how many batches were seen: no generator is asked, so that a step can
    be captured, and a run resumes with the same masks.

    Args:
        share: of the channels, that is left out.
        dim: which dimension goes over the channels. The first goes over the rows.

    Attributes:
        counts: whether a pass in training is a new batch. While a layer is computed again for its
            gradients it is not, and the mask stays.
    """

    def __init__(self, share: float, dim: int = 1):
        super().__init__()
        self.share, self.dim, self.counts = share, dim, True
        self.salt: Tensor
        self.seen: Tensor
        self.register_buffer("salt", torch.randint(2**62, ()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, …)` → the same, as it is where this is not in training mode."""
        if not self.training:
            return input
        if self.counts:
            self.seen += 1
        shape = [1] * input.dim()
        shape[0], shape[self.dim] = rows, channels = input.shape[0], input.shape[self.dim]
        places = torch.arange(rows * channels, device=input.device)
        numbers = uniform(places + scrambled(self.salt + self.seen))
        scale = (numbers >= self.share).to(input.dtype) / (1 - self.share)
        return input * scale.view(shape)


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
