"""Two classes by a single number: the log-odds of class 1."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unbounded.likelihoods.categorical import ClassLikelihood


class Bernoulli(ClassLikelihood):
    """p(y = 1; Ω) = σ(Ω), heads with one output."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, 1)` and `(batch,)` → `(depth, batch)`."""
        logits = outputs[..., 0]
        sign = (2 * y - 1).to(logits.dtype)
        return F.logsigmoid(sign * logits)

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        """`(depth, batch, 1)` → `(depth, class, batch)`, two classes."""
        logits = outputs.transpose(1, 2)
        return torch.cat([F.logsigmoid(-logits), F.logsigmoid(logits)], 1)

    def check_targets(self, y: Tensor) -> Tensor:
        """Integers 0 or 1."""
        return self.check_classes(y, 2)

    def num_outputs(self, size: int) -> int:
        """One: the log-odds of class 1."""
        return 1

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give one number."""
        if outputs.dim() != 3 or outputs.shape[2] != 1:
            raise ValueError(
                f"heads must give 1 number a row for Bernoulli, got {tuple(outputs.shape[2:])}"
            )

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {}
