"""Held-out rows for the depth rules that look at them."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from unbounded.engines.base import VALIDATION
from unbounded.likelihoods import Likelihood, Tokens
from unbounded.model import UDN
from unbounded.schema import FileError
from unbounded.steps.batches import Batch, Batches, LoaderBatches
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.held_out_rows import even
from unbounded.steps.scoring import SetScores, per_observation, row_weights
from unbounded.steps.streams import StreamBatches


def check_rule(
    rule: DepthRule | None, sets: Mapping[str, object], data: Batches | None = None
) -> None:
    """A ValueError if the rule needs held-out rows that there are not; data of any engine."""
    if rule is None or not rule.needs_held_out:
        return
    name = type(rule).__name__
    if VALIDATION not in sets:
        if isinstance(data, StreamBatches):
            return
        raise ValueError(
            f"{name} looks at held-out rows: it needs a validation set, or a Stream of fresh ones"
        )
    if isinstance(sets[VALIDATION], LoaderBatches):
        raise ValueError(
            f"{name} follows each held-out row: give the validation set as arrays, "
            "since a loader may shuffle"
        )


class FreshRows:
    """What each depth made of rows that came in batches, as of a stream before it is trained on.

    Rows of one epoch are one look. The rule follows rows by their place, and means over time of
    rows that are others each time have just the spread that the rule takes them to have: that of
    independent rows. Weights change places, too: `DepthRule.look_at_fresh`.
    """

    def __init__(self, data: StreamBatches | None = None):
        self.data = data  # where a checkpoint has to find the place again
        self.weights: Tensor | None = None  # the mean one of the rows that were looked at last
        self._seen: list[tuple[Tensor, Batch]] = []

    def add(self, log_lik: Tensor | None, batch: Batch) -> None:
        """A batch with its log-likelihoods `(depth, rows)`; None where no rule asks."""
        if log_lik is not None:
            self._seen.append((log_lik, batch._replace(x=None)))

    def clear(self) -> None:
        """Begin an epoch."""
        self._seen = []

    def look(self, rule: DepthRule, model: UDN) -> None:
        """Show the rule the rows of this epoch."""
        if not self._seen:
            return
        likelihood = model.likelihood
        depth = min(len(log_lik) for log_lik, _ in self._seen)  # λ moves between epochs alone
        # p₀ knows the targets of the whole look, however they came.
        y, own = _together([batch for _, batch in self._seen], likelihood)
        share = per_observation(likelihood, y.new_ones(len(y), dtype=torch.float64), y)
        guess, counts = likelihood.guess(y), row_weights(likelihood, y, own)
        log_lik = torch.cat([one[:depth] for one, _ in self._seen], 1) * share
        self.weights = None if counts is None else even(counts[None])[0].clone()
        rule.look_at_fresh(model, log_lik, None if guess is None else guess * share, counts)

    def state(self) -> dict[str, Tensor]:
        """How many batches were taken, and the weights that the rule moves by next."""
        assert self.data is not None
        found = {"taken": torch.tensor(self.data.taken)}
        return found if self.weights is None else {**found, "weights": self.weights}

    def check_state(self, state: dict[str, Tensor], steps: int) -> None:
        """A FileError unless `load_state` can take these tensors."""
        taken, weights = state.get("taken"), state.get("weights")
        if taken is None or taken.shape != () or taken.dtype != torch.int64 or int(taken) != steps:
            raise FileError("the tensor fresh.taken should be the number of steps")
        if weights is not None and (weights.dim() != 1 or not bool(torch.isfinite(weights).all())):
            raise FileError("the tensor fresh.weights should be a finite number for each row")

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on behind the batches that were taken."""
        assert self.data is not None
        self.data.skip(int(state["taken"]))
        weights = state.get("weights")
        self.weights = None if weights is None else weights.to(self.data.model.anchor.device)


def _together(batches: list[Batch], likelihood: Likelihood) -> tuple[Tensor, Tensor | None]:
    """Targets and weights of all batches; sequences as long as the longest, weights that are not
    given 1.
    """
    targets, weights = [batch.y for batch in batches], None
    if isinstance(likelihood, Tokens):
        longest = max(y.shape[1] for y in targets)
        targets = [F.pad(y, (0, longest - y.shape[1]), value=likelihood.ignored) for y in targets]
    if any(batch.weights is not None for batch in batches):
        given = (batch.weights for batch in batches)
        weights = torch.cat(
            [
                torch.ones(len(y), device=y.device) if own is None else own
                for own, y in zip(given, targets, strict=True)
            ]
        )
    return torch.cat(targets), weights


def look(rule: DepthRule, model: UDN, scores: SetScores) -> None:
    """Show the rule what each depth makes of the held-out rows, if there are any."""
    if VALIDATION not in scores.sets:
        return
    held_out = scores.sets[VALIDATION]
    assert not isinstance(held_out, LoaderBatches | StreamBatches)  # see `check_rule`
    likelihood, y = model.likelihood, held_out.y
    guess = likelihood.guess(y)
    if guess is not None:
        guess = per_observation(likelihood, guess, y)
    by_depth = per_observation(likelihood, scores.by_depth.clone(), y)
    rule.look(model, by_depth, guess, weights(model, scores))


def weights(model: UDN, scores: SetScores, fresh: FreshRows | None = None) -> Tensor | None:
    """How often each held-out row counts, `(rows,)`."""
    if VALIDATION not in scores.sets:
        return None if fresh is None else fresh.weights
    held_out = scores.sets[VALIDATION]
    assert not isinstance(held_out, LoaderBatches | StreamBatches)
    return row_weights(model.likelihood, held_out.y, getattr(held_out, "weights", None))
