"""Free probabilities over a finite set of depths."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.depth.base import NO_MASS, DepthFamily, Numbers


class FiniteDepth(DepthFamily):
    """q(ℓ) free over 1 … D, as in Depth Uncertainty Networks (Antorán et al., 2020).

    Starts uniform. Bounded: no member reaches beyond `max_depth`.
    """

    is_unbounded = False

    def __init__(self, max_depth: int):
        super().__init__()
        if int(max_depth) != max_depth or max_depth < 1:
            raise ValueError(f"max_depth must be an integer of at least 1, got {max_depth!r}")
        self.largest = int(max_depth)
        self.logits = nn.Parameter(torch.zeros(self.largest))

    def max_depth(self) -> int:
        """D, whatever the probabilities are."""
        return self.largest

    def scores(self, at: Numbers, size: int) -> Tensor:
        """The logits."""
        return F.pad(at["logits"].double(), (0, size - self.largest), value=NO_MASS)

    def end(self, at: Numbers, size: int) -> Tensor:
        """D, whatever the probabilities are."""
        logits = at["logits"]
        return torch.full(logits.shape[:-1], self.largest, device=logits.device)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; the probabilities travel as a parameter."""
        return {"max_depth": self.largest}
