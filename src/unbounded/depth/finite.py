"""Free probabilities over a finite set of depths."""

from typing import Any

import torch
from torch import Tensor, nn

from unbounded.depth.base import DepthFamily


class FiniteDepth(DepthFamily):
    """q(ℓ) free over 1 … D, as in Depth Uncertainty Networks (Antorán et al., 2020).

    Starts uniform. Bounded: no member reaches beyond `max_depth`.
    """

    is_unbounded = False

    def __init__(self, max_depth: int):
        super().__init__()
        if int(max_depth) != max_depth or max_depth < 1:
            raise ValueError(f"max_depth must be an integer of at least 1, got {max_depth!r}")
        self.logits = nn.Parameter(torch.zeros(int(max_depth)))

    def max_depth(self) -> int:
        """D, whatever the probabilities are."""
        return self.logits.numel()

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(D): shape `(max_depth,)`."""
        return self.logits.log_softmax(0)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; the probabilities travel as a parameter."""
        return {"max_depth": self.max_depth()}
