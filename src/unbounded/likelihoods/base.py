"""The contract of a likelihood and of what it predicts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Prediction:
    """The predictive mixture Σ_ℓ q(ℓ) p(y; Ω_ℓ(x)) of the paper's section 3.2.

    Attributes:
        likelihood: p(y; Ω).
        outputs: Ω_ℓ(x), `(depth, batch, *event)`.
        depth_log_probs: log q(ℓ) of those depths, `(depth,)`, summing to one.
    """

    likelihood: "Likelihood"
    outputs: Tensor
    depth_log_probs: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y_i; Ω_ℓ(x_i)), in log space: `(batch,)`."""
        return self.mix(self.log_prob_by_depth(y))

    def log_prob_by_depth(self, y: Tensor) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)): `(depth, batch)`."""
        return self.likelihood.log_lik(self.outputs, y)

    def mix(self, log_values: Tensor) -> Tensor:
        """logsumexp over depths of log q(ℓ) + `log_values`, `(depth, …)` → `(…)`."""
        shape = (-1,) + (1,) * (log_values.dim() - 1)
        return torch.logsumexp(
            self.depth_log_probs.to(log_values.dtype).view(shape) + log_values, 0
        )


class Likelihood(nn.Module, ABC):
    """p(y; Ω_ℓ(x)). One of your own implements `log_prob`; the rest has defaults.

    Example:
        >>> class Laplace(Likelihood):
        ...     def log_prob(self, outputs, y):
        ...         return -(outputs[..., 0] - y).abs() - math.log(2)
    """

    score_name: str = "log_score"
    """The score by which the best epoch is chosen."""
    higher_is_better: bool = True
    unit: str = "rows"
    """What n counts. Where it is not rows (but "tokens"), `observations` says how many a row has,
    and all scores, and what a depth rule looks at, are means over observations."""
    mixes_rows: bool = True
    """Whether the prediction of a row is the mixture of its log-likelihoods by depth; or else of
    something finer, as of tokens."""
    output_axes: int = 1
    """How many axes the output of a head has behind the batch."""
    has_verdicts: bool = False
    """Whether predictions give probabilities of answers (`verdict`, `Prediction.log_probs`)."""

    @property
    def single(self) -> "Likelihood":
        """The likelihood of one member, where several share a network (`Members`); else this."""
        return self

    @property
    def count(self) -> int:
        """How many members share a network."""
        return 1

    @property
    def described(self) -> str:
        """What errors call it."""
        return type(self).__name__

    def verdict(self, probs: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable answer of each row, `(batch, …)`, and what speaks for it, `(batch,)`.

        Args:
            probs: of a prediction's `log_probs`, or parts of them that some depths contribute,
                `(batch, …)`.
            mass: how much all answers have together, broadcastable; 1 for whole predictions.
        """
        raise NotImplementedError(f"{self.described} has no probabilities of answers")

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)): `(depth, batch, *event)` and `(batch, …)` → `(depth, batch)`."""

    def log_lik(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`log_prob`, with a ValueError if its shape is not `(depth, batch)`."""
        found = self.log_prob(outputs, y)
        if found.shape != outputs.shape[:2]:
            raise ValueError(
                f"log_prob of {type(self).__name__} must give one number for each depth and row, "
                f"{tuple(outputs.shape[:2])}, got {tuple(found.shape)} from outputs "
                f"{tuple(outputs.shape)} and targets {tuple(y.shape)}"
            )
        return found

    def log_scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What a depth is judged by on held-out rows, `(depth, batch)`: `log_lik`, by default."""
        return self.log_lik(outputs, y)

    def observations(self, y: Tensor) -> Tensor | None:
        """How many observations each row holds, `(batch,)`; None: one each."""
        return None

    def total(self, y: Tensor) -> Tensor | None:
        """How many observations a batch holds, a scalar; None: as many as rows."""
        found = self.observations(y)
        return None if found is None else found.sum()

    def guess(self, y: Tensor) -> Tensor | None:
        """log p₀(y_i) of the best prediction that ignores x, fitted to these targets: `(batch,)`.

        None, the default: nobody knows. A `HeldOutAscent` then takes plain log-likelihoods.
        """
        return None

    def check_targets(self, y: Tensor) -> Tensor:
        """The targets in the form that `log_prob` takes, or a ValueError that says why not."""
        if y.is_floating_point() and not bool(torch.isfinite(y).all()):
            raise ValueError(f"targets must be finite, got {_bad_values(y)}")
        return y

    def check_training_targets(self, y: Tensor) -> None:
        """A ValueError if nothing can be learnt from these targets as a whole."""

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """A ValueError if heads of this shape cannot be the parameters for these targets.

        Args:
            outputs: `(depth, batch, *event)`.
            y: targets, or None when predicting.
        """

    def num_outputs(self, size: int) -> int:
        """How many numbers a head must give for this many classes or targets; one each here."""
        return size

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> Prediction:
        """The mixture over depths."""
        return Prediction(self, outputs, depth_log_probs)

    def predictions(self, outputs: Tensor, depth_log_probs: Tensor) -> Sequence[Prediction]:
        """The mixture over depths of each member that shares the network."""
        return [self.predict(outputs, depth_log_probs)]

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """A number for each row whose mean is the score (before `finish_score`): `(batch,)`.

        Where rows hold several observations, the mean over those of the row.
        """
        return prediction.log_prob(y)

    def finish_score(self, mean: float) -> float:
        """From the mean over the data to the score: the identity, or a root for an RMSE."""
        return mean

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the likelihood to unbounded.load yourself"
        )


def _bad_values(y: Tensor) -> str:
    bad = ~torch.isfinite(y)
    where = bad.nonzero()[0].tolist()
    return f"{int(bad.sum())} NaN or infinite values, the first at index {tuple(where)}"
