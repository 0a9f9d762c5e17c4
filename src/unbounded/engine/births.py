"""Births of layers, one thread at a time: they borrow torch's global random generator."""

import threading
from typing import TYPE_CHECKING

from torch import nn

from unbounded import growth

if TYPE_CHECKING:
    from unbounded.model import UDN

_ONE_AT_A_TIME = threading.Lock()


def create(model: "UDN", role: str, depth: int) -> nn.Module:
    """A new hidden layer or head of a model, as `growth.create` makes it."""
    with _ONE_AT_A_TIME:
        return growth.create(model, role, depth)


def resize(model: "UDN", num_layers: int) -> None:
    """Have exactly `num_layers` layers in a model, as `growth.resize` does."""
    with _ONE_AT_A_TIME:
        growth.resize(model, num_layers)
