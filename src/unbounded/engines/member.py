"""One model in training, with all that belongs to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from unbounded.engines import held_out
from unbounded.engines.averages import MovingAverage
from unbounded.model import UDN
from unbounded.steps.batches import Batch, Batches
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.options import FitOptions
from unbounded.steps.scoring import SetScores

_STEPS = 64  # that there is room for at first


class Terms:
    """The terms of 𝓛 of each step of an epoch, `(step, term)`.

    In one tensor: of small ones that stay, one behind each step, a heap is cut into pieces that
    have no room for the next step's large ones, and grows to twice the size.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, terms: Tensor) -> None:
        """Those of a step, `(term,)`."""
        kept = self._kept
        if kept is None or kept.device != terms.device or kept.dtype != terms.dtype:
            kept = self._kept = terms.new_empty(_STEPS, len(terms))
            self._count = 0
        if self._count == len(kept):
            kept = self._kept = torch.cat([kept, torch.empty_like(kept)])
        kept[self._count] = terms
        self._count += 1

    def all(self) -> Tensor:
        """`(step, term)`."""
        assert self._kept is not None
        return self._kept[: self._count]

    def clear(self) -> None:
        """An epoch begins."""
        self._count = 0


@dataclass
class Member:
    """One model in training, with all that belongs to it."""

    number: int
    model: UDN
    call: Callable[..., Tensor]
    options: FitOptions
    data: Batches
    scores: SetScores
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | ReduceLROnPlateau | None
    scaler: torch.amp.GradScaler | None
    average: MovingAverage | None
    base_rates: list[float]  # learning rates of the groups before any schedule
    found: list[dict[str, Any]]  # options of the groups before a scheduler touched them
    fresh: held_out.FreshRows | None  # what came from a stream in this epoch
    steps: int = 0
    alive: bool = True
    failure: str | None = None
    too_deep: str | None = None  # why it cannot grow any further
    terms: Terms = field(default_factory=Terms)
    best: tuple[int, dict[str, Tensor]] | None = None  # number of layers, state
    iterator: Iterator[Batch] = field(default_factory=lambda: iter(()))
    extra: Any = None  # what an engine keeps of this model

    @property
    def judge(self) -> DepthRule | None:
        """The depth rule, if it is one that looks at held-out rows."""
        rule = self.options.depth_rule
        return rule if rule is not None and rule.needs_held_out else None
