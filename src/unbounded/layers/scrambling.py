"""Numbers that look random and are functions of other numbers, the same on every machine."""

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, with a sign: multiples of it are far apart


def scrambled(numbers: Tensor) -> Tensor:
    """Whole numbers of 64 bits ↦ others that look independent, neighbours too."""
    return mixed(numbers * GOLDEN)


def mixed(numbers: Tensor) -> Tensor:
    """The finaliser of SplitMix64: every bit of a number changes half of the others."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def uniform(numbers: Tensor) -> Tensor:
    """Whole numbers ↦ numbers that look uniform on [0, 1): their first 24 bits."""
    return _shifted(scrambled(numbers), 40).to(torch.float32) / 2**24


def _shifted(numbers: Tensor, count: int) -> Tensor:
    """To the right, with zeros from the left, as of unsigned numbers."""
    return (numbers >> count) & ((1 << (64 - count)) - 1)
