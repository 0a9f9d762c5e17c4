"""One depth for certain: an ordinary network."""

from typing import Any

import torch
from torch import Tensor

from unbounded.depth.base import DepthFamily


class FixedDepth(DepthFamily):
    """q(ℓ) = 1 at ℓ = `depth`: the classical network Ω_L of the paper's section 2.

    Only the head at that depth exists; with it a `UDN` has the loss and the gradients of a
    plain network of that many layers.
    """

    is_unbounded = False

    def __init__(self, depth: int):
        super().__init__()
        if int(depth) != depth or depth < 1:
            raise ValueError(f"depth must be an integer of at least 1, got {depth!r}")
        self.depth = int(depth)
        log_probs = torch.full((self.depth,), -torch.inf)
        log_probs[-1] = 0.0
        self._log_probs: Tensor
        self.register_buffer("_log_probs", log_probs, persistent=False)

    def max_depth(self) -> int:
        """The depth itself."""
        return self.depth

    def log_probs(self) -> Tensor:
        """−∞ below `depth` and 0 at it: shape `(depth,)`."""
        return self._log_probs

    def first_depth(self) -> int:
        """The depth itself."""
        return self.depth

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family."""
        return {"depth": self.depth}
