"""The contract of a layer generator, and the one made of a user's own callables."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn


class Layers(ABC):
    """The architecture: which hidden layer and which head stand at each depth ℓ = 1, 2, …

    Generators know sizes and nothing of probability. They build on the CPU with torch's
    default generator, which the caller has seeded by the model's seed and the depth; the
    result is moved to the model's device, dtype and memory format afterwards.
    """

    shares_head: bool = False
    """Whether all depths use one head, the one that `head(1)` builds."""

    integer_inputs: bool = False
    """Whether the first layer takes integers (an embedding); else inputs are made floating."""

    @abstractmethod
    def hidden(self, depth: int) -> nn.Module:
        """A new f_ℓ: maps h_{ℓ−1} (the input x for ℓ = 1) to h_ℓ."""

    @abstractmethod
    def head(self, depth: int) -> nn.Module:
        """A new o_ℓ: maps h_ℓ to the parameters of the likelihood."""

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator, as plain data for a file's header."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the layers to unbounded.load yourself"
        )


class CustomLayers(Layers):
    """A generator made of two callables, ℓ ↦ hidden module and ℓ ↦ head.

    Layers of different shapes and types may follow one another as long as each takes what the
    one before gives.

    Example:
        >>> layers = CustomLayers(
        ...     hidden=lambda depth: nn.Linear(2 if depth == 1 else 16, 16),
        ...     head=lambda depth: nn.Linear(16, 3),
        ... )
    """

    def __init__(
        self,
        hidden: Callable[[int], nn.Module],
        head: Callable[[int], nn.Module],
        *,
        shares_head: bool = False,
        integer_inputs: bool = False,
    ):
        self._hidden = hidden
        self._head = head
        self.shares_head = shares_head
        self.integer_inputs = integer_inputs

    def hidden(self, depth: int) -> nn.Module:
        """What the first callable makes of ℓ."""
        return self._hidden(depth)

    def head(self, depth: int) -> nn.Module:
        """What the second callable makes of ℓ."""
        return self._head(depth)
