"""Several labels at once, each there or not: a row may have any number of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from unbounded.likelihoods.base import Likelihood, Prediction


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """A mixture over depths; at each depth the labels are independent given x."""

    @property
    def log_probs_by_depth(self) -> Tensor:
        """log p(y_j = 1; Ω_ℓ(x_i)): `(depth, batch, label)`."""
        return F.logsigmoid(self.outputs)

    @cached_property
    def log_probs(self) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y_j = 1; Ω_ℓ(x_i)): `(batch, label)`."""
        return self.mix(self.log_probs_by_depth)

    @property
    def probs(self) -> Tensor:
        """The probability of each label, none above 1, whatever rounding did: `(batch, label)`."""
        return self.log_probs.exp().clamp(max=1.0)

    @property
    def log_odds(self) -> Tensor:
        """log p(y_j = 1) − log p(y_j = 0), finite where either rounds to 0: `(batch, label)`."""
        return self.log_probs - self.mix(F.logsigmoid(-self.outputs))

    @property
    def classes(self) -> Tensor:
        """1 for the labels that are rather there than not: `(batch, label)`."""
        return (self.probs > 0.5).long()


class MultiLabel(Likelihood):
    """p(y; Ω) = Π_j σ(Ω_j)^{y_j} σ(−Ω_j)^{1−y_j}, one output for each label.

    Args:
        num_labels: k, the size of a head's output.
    """

    score_name = "label_accuracy"
    has_verdicts = True

    def __init__(self, num_labels: int):
        super().__init__()
        if int(num_labels) != num_labels or num_labels < 1:
            raise ValueError(f"num_labels must be an integer of at least 1, got {num_labels!r}")
        self.num_labels = int(num_labels)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, label)` and `(batch, label)` → `(depth, batch)`."""
        sign = (2 * y - 1).to(outputs.dtype)
        return F.logsigmoid(sign * outputs).sum(-1)

    def guess(self, y: Tensor) -> Tensor:
        """How often each label is there, with a row more of either kind: `(batch,)`."""
        share = (y.double().sum(0) + 1) / (len(y) + 2)
        return (y * share.log() + (1 - y) * (1 - share).log()).sum(1)

    def check_targets(self, y: Tensor) -> Tensor:
        """0 or 1 for each label: `(batch, label)`."""
        if y.dim() != 2 or y.shape[1] != self.num_labels:
            raise ValueError(
                f"targets must have shape (rows, {self.num_labels}) for MultiLabel, "
                f"got {tuple(y.shape)}"
            )
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("targets must be 0 or 1 for MultiLabel")
        return y.long()

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give one number for each label."""
        if outputs.dim() != 3 or outputs.shape[2] != self.num_labels:
            raise ValueError(
                f"heads must give {self.num_labels} numbers a row for MultiLabel, "
                f"got {tuple(outputs.shape[2:])}"
            )

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> LabelPrediction:
        """The mixture over depths."""
        return LabelPrediction(self, outputs, depth_log_probs)

    def verdict(self, probs: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Which labels are there, `(batch, label)`, and what speaks for the least sure one."""
        absent = mass - probs
        return (probs > absent).long(), probs.maximum(absent).amin(-1)

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """The share of the labels of each row that are right: `(batch,)`."""
        assert isinstance(prediction, LabelPrediction)
        return (prediction.classes == y).to(prediction.outputs.dtype).mean(1)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {"num_labels": self.num_labels}
