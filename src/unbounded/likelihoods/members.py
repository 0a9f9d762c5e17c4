"""Several members that share one network: heads give the parameters of each."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from unbounded.likelihoods.base import Likelihood, Prediction
from unbounded.likelihoods.bernoulli import Bernoulli
from unbounded.likelihoods.categorical import Categorical
from unbounded.likelihoods.gaussian import BalancedGaussian, Gaussian
from unbounded.likelihoods.labels import MultiLabel

MOST = 1024
"""Members at most."""


class Members(Likelihood):
    """k members with a likelihood of one kind; heads give `(batch, member, *event)`.

    Training takes the mean of the members' log-likelihoods, so that each learns to predict by
    itself. Predictions, scores, and what depths are judged by, are those of the mixture
    1/k Σ_m p(y; Ω_mℓ(x)).

    Args:
        each: p(y; Ω) of one member; parameters of its own, such as noise, are all members'.
        count: k.
    """

    def __init__(self, each: Likelihood, count: int):
        super().__init__()
        if isinstance(each, Members):
            raise ValueError("each must be the likelihood of one member, got Members")
        if isinstance(count, bool) or int(count) != count or not 1 <= count <= MOST:
            raise ValueError(f"count must be an integer from 1 to {MOST}, got {count!r}")
        self.each, self._count = each, int(count)
        self.score_name, self.higher_is_better = each.score_name, each.higher_is_better
        self.has_verdicts = each.has_verdicts

    @property
    def single(self) -> Likelihood:
        """The likelihood of one member."""
        return self.each

    @property
    def count(self) -> int:
        """How many members there are."""
        return self._count

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The members' mean: `(depth, batch, member, *event)` and `(batch, …)` → `(depth, batch)`.

        Not the mixture's: there a member that is behind would stop learning.
        """
        return self._by_member(outputs, y).mean(0)

    def log_scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log 1/k Σ_m p(y_i; Ω_mℓ(x_i)): `(depth, batch)`."""
        return self._by_member(outputs, y).logsumexp(0) - math.log(self.count)

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> Prediction:
        """The mixture over members and depths; its first axis goes over both, members first."""
        log_q = (depth_log_probs - math.log(self.count)).repeat(self.count)
        return self.each.predict(_folded(outputs), log_q)

    def predictions(self, outputs: Tensor, depth_log_probs: Tensor) -> Sequence[Prediction]:
        """The mixture over depths of each member."""
        return [self.each.predict(own, depth_log_probs) for own in outputs.unbind(2)]

    @property
    def described(self) -> str:
        """What errors call it."""
        return self.each.described

    def verdict(self, probs: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Of the mixture, as one member has it."""
        return self.each.verdict(probs, mass)

    def guess(self, y: Tensor) -> Tensor | None:
        """As one member has it."""
        return self.each.guess(y)

    def check_targets(self, y: Tensor) -> Tensor:
        """As one member has it."""
        return self.each.check_targets(y)

    def check_training_targets(self, y: Tensor) -> None:
        """As one member has it."""
        self.each.check_training_targets(y)

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give what each of the members takes."""
        if outputs.dim() < 3 or outputs.shape[2] != self.count:
            raise ValueError(
                f"heads must give the parameters of {self.count} members a row, (batch, member, …),"
                f" got {tuple(outputs.shape[1:])}: TrunkDense(…, members={self.count}) does"
            )
        self.each.check_outputs(_folded(outputs), y)

    def num_outputs(self, size: int) -> int:
        """Of one member's head."""
        return self.each.num_outputs(size)

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """Of the mixture, as one member has it."""
        return self.each.score(prediction, y)

    def finish_score(self, mean: float) -> float:
        """As one member has it."""
        return self.each.finish_score(mean)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        name = type(self.each).__name__
        if KINDS.get(name) is not type(self.each):
            raise NotImplementedError(
                f"{name} is not built in: pass the likelihood to unbounded.load yourself"
            )
        return {"each": {"kind": name, **self.each.config()}, "count": self.count}

    @classmethod
    def from_config(cls, each: dict[str, Any], count: int) -> "Members":
        """The likelihood that `config` describes."""
        arguments = dict(each)
        kind: Any = KINDS[arguments.pop("kind")]
        return cls(getattr(kind, "from_config", kind)(**arguments), count)

    def _by_member(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y_i; Ω_mℓ(x_i)): `(member, depth, batch)`."""
        found = self.each.log_lik(_folded(outputs), y)
        return found.unflatten(0, (self.count, outputs.shape[0]))


KINDS: dict[str, type[Likelihood]] = {
    cls.__name__: cls for cls in (Categorical, Bernoulli, MultiLabel, Gaussian, BalancedGaussian)
}


def _folded(outputs: Tensor) -> Tensor:
    """`(depth, batch, member, *event)` → `(member · depth, batch, *event)`."""
    return outputs.movedim(2, 0).flatten(0, 1)
