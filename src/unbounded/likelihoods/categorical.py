"""Classes: a softmax over a head's outputs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from unbounded.likelihoods.base import Likelihood, Prediction


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """A mixture of class probabilities."""

    @cached_property
    def _by_class(self) -> Tensor:
        """log p(y = c; Ω_ℓ(x_i)) as `(depth, class, batch)`, the layout in which sums are fast."""
        assert isinstance(self.likelihood, ClassLikelihood)
        return self.likelihood.class_log_probs(self.outputs)

    @cached_property
    def _mixed(self) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y = c; Ω_ℓ(x_i)) as `(class, batch)`."""
        return self.mix(self._by_class)

    @property
    def log_probs_by_depth(self) -> Tensor:
        """log p(y = c; Ω_ℓ(x_i)): `(depth, batch, class)`."""
        return self._by_class.transpose(1, 2)

    @property
    def log_probs(self) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y = c; Ω_ℓ(x_i)): `(batch, class)`."""
        return self._mixed.t()

    def log_prob(self, y: Tensor) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y_i; Ω_ℓ(x_i)): `(batch,)`."""
        return self._mixed.gather(0, y[None])[0]

    @property
    def probs(self) -> Tensor:
        """The class probabilities, none above 1, whatever rounding did: `(batch, class)`."""
        return self._mixed.softmax(0).t()

    @property
    def classes(self) -> Tensor:
        """The most probable class of each row: `(batch,)`."""
        return self._mixed.argmax(0)

    @property
    def classes_by_depth(self) -> Tensor:
        """The most probable class of each row by each depth alone: `(depth, batch)`."""
        return self._by_class.argmax(1)


class ClassLikelihood(Likelihood):
    """What `Categorical` and `Bernoulli` share: targets are classes 0 … C−1."""

    score_name = "accuracy"
    has_verdicts = True

    def verdict(self, probs: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """The class and its probability: `(batch, class)` → `(batch,)` each."""
        highest = probs.max(-1)
        return highest.indices, highest.values

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        """log p(y = c; Ω): `(depth, batch, *event)` → `(depth, class, batch)`."""
        raise NotImplementedError

    def check_classes(self, y: Tensor, num_classes: int) -> Tensor:
        """Integer targets of shape `(batch,)` in 0 … num_classes−1."""
        if y.dim() == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.dim() != 1:
            raise ValueError(f"class labels must have shape (rows,), got {tuple(y.shape)}")
        if y.is_floating_point():
            super().check_targets(y)
            if not bool((y == y.round()).all()):
                raise ValueError("class labels must be integers, got fractions")
        if y.numel():
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= num_classes:
                raise ValueError(
                    f"class labels must be in 0 … {num_classes - 1}, got {low} … {high}"
                )
        return y.long()

    def check_training_targets(self, y: Tensor) -> None:
        """At least two classes must be there to learn from."""
        classes = y.unique()
        if classes.numel() < 2:
            raise ValueError(
                f"the training labels hold a single class ({int(classes[0])}), "
                "at least two are needed"
            )

    def guess(self, y: Tensor) -> Tensor:
        """The classes' frequencies, with one row more of each: `(batch,)`."""
        counts = y.long().bincount(minlength=2).double() + 1
        return (counts / counts.sum()).log()[y.long()]

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> ClassPrediction:
        """The mixture of class probabilities."""
        return ClassPrediction(self, outputs, depth_log_probs)

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """Whether each row is right: `(batch,)`."""
        assert isinstance(prediction, ClassPrediction)
        # "The largest is that of y" says the same as an argmax and takes a tenth of its time.
        return prediction.log_prob(y) == prediction.log_probs.amax(1)


class Categorical(ClassLikelihood):
    """p(y; Ω) = softmax(Ω)_y, the paper's likelihood for classes.

    Args:
        num_classes: C, the size of a head's output.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        if int(num_classes) != num_classes or num_classes < 2:
            raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
        self.num_classes = int(num_classes)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, class)` and `(batch,)` → `(depth, batch)`."""
        by_class = self.class_log_probs(outputs)
        return by_class.gather(1, y.expand(by_class.shape[0], 1, -1)).squeeze(1)

    def class_log_probs(self, outputs: Tensor) -> Tensor:
        """`(depth, batch, class)` → `(depth, class, batch)`, the layout in which it is fast."""
        return outputs.transpose(1, 2).log_softmax(1)

    def check_targets(self, y: Tensor) -> Tensor:
        """Integers in 0 … C−1."""
        return self.check_classes(y, self.num_classes)

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give one number for each class."""
        if outputs.dim() != 3 or outputs.shape[2] != self.num_classes:
            raise ValueError(
                f"heads must give {self.num_classes} numbers a row for Categorical, "
                f"got {tuple(outputs.shape[2:])}"
            )

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {"num_classes": self.num_classes}
