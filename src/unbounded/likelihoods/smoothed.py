"""Classes with smoothed labels: a criterion to train by, not a likelihood to predict with."""

from typing import Any

from torch import Tensor

from unbounded.likelihoods.categorical import Categorical, ClassPrediction


class SmoothedCategorical(Categorical):
    """`Categorical`, trained with a share ε of each label spread over all C classes.

    In training stands (1−ε) log p(y) + ε/C Σ_c log p(c) in place of log p(y). Predictions, scores
    and what a depth rule sees of held-out rows are those of `Categorical`.

    Args:
        num_classes: C.
        smoothing: ε, from 0 to below 1.
    """

    def __init__(self, num_classes: int, smoothing: float):
        super().__init__(num_classes)
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be from 0 to below 1, got {smoothing}")
        self.smoothing = float(smoothing)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The criterion: `(depth, batch, class)` and `(batch,)` → `(depth, batch)`."""
        by_class = self.class_log_probs(outputs)
        chosen = by_class.gather(1, y.expand(by_class.shape[0], 1, -1)).squeeze(1)
        return (1 - self.smoothing) * chosen + self.smoothing * by_class.mean(1)

    def log_scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y), without smoothing: `(depth, batch)`."""
        return Categorical.log_prob(self, outputs, y)

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> ClassPrediction:
        """The mixture of class probabilities, of labels as they are."""
        return Categorical(self.num_classes).predict(outputs, depth_log_probs)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {**super().config(), "smoothing": self.smoothing}
