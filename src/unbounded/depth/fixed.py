"""One depth for certain: an ordinary network."""

from typing import Any

import torch
from torch import Tensor

from unbounded.depth.base import NO_MASS, DepthFamily, Numbers


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
        self._depth: Tensor
        # A tensor, so that networks of many depths are one stack; floating, for `log_probs` to have
        # the dtype of its model.
        self.register_buffer("_depth", torch.tensor(float(depth)), persistent=False)
        self._host_depth = int(depth)

    @property
    def depth(self) -> int:
        """The depth."""
        return self._host_depth

    def max_depth(self) -> int:
        """The depth itself."""
        return self._host_depth

    def first_depth(self) -> int:
        """The depth itself."""
        return self._host_depth

    def scores(self, at: Numbers, size: int) -> Tensor:
        """0 at the depth, no mass elsewhere."""
        depths = torch.arange(1, size + 1, device=at["_depth"].device)
        other = depths != at["_depth"][..., None]
        return torch.zeros_like(other, dtype=torch.float64).masked_fill(other, NO_MASS)

    def end(self, at: Numbers, size: int) -> Tensor:
        """The depth itself."""
        return at["_depth"].long()

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family."""
        return {"depth": self.depth}
