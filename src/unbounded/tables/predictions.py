"""What every depth predicts for some rows, and the columns that users see of it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unbounded import metrics
from unbounded.tables.values import Floats

if TYPE_CHECKING:
    from unbounded.estimators.levels import Levels


class ByDepth(NamedTuple):
    """What every depth predicts for some rows.

    For classes `values` are probabilities, `(depth, rows, class)`, and `scales` is None; for
    numbers they are means and standard deviations of the noise, both `(depth, rows)`.
    """

    depth_probs: Floats  # (depth,)
    values: Floats
    scales: Floats | None
    levels: "Levels | None" = None  # what levels of a number's mixture hold; None: what they say
    whole: tuple[Floats, Floats, Floats] | None = None
    """Of several members, probabilities, means and scales of a number's whole mixture: at one depth
    members differ, and `scales` have the moments alone."""

    @property
    def components(self) -> tuple[Floats, Floats, Floats]:
        """A number's mixture, as `unbounded.metrics` takes it: probabilities, means and scales."""
        assert self.scales is not None
        return self.whole or (self.depth_probs, self.values, self.scales)

    @property
    def mixture(self) -> Floats:
        """The mixture's class probabilities, `(rows, class)`, or means, `(rows,)`."""
        mixed: Floats = np.tensordot(self.depth_probs, self.values, 1)
        # No probability above 1, whatever rounding did.
        return mixed if self.scales is not None else mixed / mixed.sum(-1, keepdims=True)

    def noise(self) -> Floats:
        """The uncertainty that every depth sees, `(rows,)`: mean entropy in nats, or sd."""
        if self.scales is None:
            return self.depth_probs @ _entropy(self.values)
        return np.sqrt(self.depth_probs @ self.scales**2)

    def disagreement(self) -> Floats:
        """How far the depths disagree, `(rows,)`: mutual information, or standard deviation."""
        if self.scales is None:
            return np.maximum(_entropy(self.mixture) - self.noise(), 0.0)
        return np.sqrt(self.depth_probs @ (self.values - self.mixture) ** 2)

    def total(self) -> Floats:
        """Both together, `(rows,)`: entropy of the mixture, or its standard deviation."""
        if self.scales is None:
            return _entropy(self.mixture)
        return np.hypot(self.noise(), self.disagreement())

    def columns(
        self, classes: list[str], interval: float, parts: bool, factor: float | None = None
    ) -> dict[str, Any]:
        """The columns of a table of predictions.

        Args:
            classes: their names; none for numbers.
            interval: the probability of the central interval of a number.
            parts: also give noise and disagreement.
            factor: if given, the interval is so many standard deviations to each side.
        """
        columns: dict[str, Any] = {}
        if self.scales is None:
            probs = self.mixture
            columns["prediction"] = np.array(classes, dtype=object)[probs.argmax(1)]
            columns |= {f"p_{name}": probs[:, i] for i, name in enumerate(classes)}
        else:
            columns["mean"] = self.mixture
            columns["sd"] = self.total()
            tails = np.array([(1 - interval) / 2, (1 + interval) / 2])
            if factor is None:
                tails = tails if self.levels is None else self.levels.nominal(tails)
                ends = metrics.mixture_quantile(tails.tolist(), *self.components)
            else:
                ends = self.mixture + np.array([[-factor], [factor]]) * self.total()
            columns["lower"], columns["upper"] = ends
        if parts:
            units = "entropy" if self.scales is None else "sd"
            columns |= {f"noise_{units}": self.noise(), f"depth_{units}": self.disagreement()}
        return columns


def _entropy(probs: Floats) -> Floats:
    """−Σ_c p log p in nats: `(…, class)` → `(…)`."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))
