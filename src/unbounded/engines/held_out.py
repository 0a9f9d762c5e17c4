"""Held-out rows for the depth rules that look at them."""

from collections.abc import Mapping

from torch import Tensor

from unbounded.engines.base import VALIDATION
from unbounded.model import UDN
from unbounded.steps.batches import LoaderBatches
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.scoring import SetScores


def check_rule(rule: DepthRule | None, sets: Mapping[str, object]) -> None:
    """A ValueError if the rule needs held-out rows that there are not; data of any engine."""
    if rule is None or not rule.needs_held_out:
        return
    name = type(rule).__name__
    if VALIDATION not in sets:
        raise ValueError(f"{name} looks at held-out rows: it needs a validation set")
    if isinstance(sets[VALIDATION], LoaderBatches):
        raise ValueError(
            f"{name} follows each held-out row: give the validation set as arrays, "
            "since a loader may shuffle"
        )


def look(rule: DepthRule, model: UDN, scores: SetScores) -> None:
    """Show the rule what each depth makes of the held-out rows."""
    held_out = scores.sets[VALIDATION]
    assert not isinstance(held_out, LoaderBatches)  # see `check_rule`
    guess = model.likelihood.guess(held_out.y)
    rule.look(model, scores.by_depth.clone(), guess, weights(scores))


def weights(scores: SetScores) -> Tensor | None:
    """How often each held-out row counts, `(rows,)`."""
    found: Tensor | None = getattr(scores.sets[VALIDATION], "weights", None)
    return found
