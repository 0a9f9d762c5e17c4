"""How steps and runs are made: one record each, checked when it is built."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from unbounded.steps.depth_rules import DepthRule


@dataclass(frozen=True)
class StepOptions:
    """The options of a step, for `unbounded.step` and `unbounded.fit` alike.

    Attributes:
        clip: largest norm of the gradient of the loss −elbo/n.
        autocast: run the layers in this dtype (torch.bfloat16, torch.float16); the objective
            itself stays in full precision.
        micro_batches: compute a batch in this many pieces and add up their gradients, for networks
            whose hidden states of a whole batch do not fit.
        drop_inactive: free layers that leave the support; by default they keep weights and
            optimiser state until they return.
        depth_rule: what moves λ instead of the optimiser, such as `RateAscent()`; by default the
            optimiser does, as in the paper.
        equal_heads: let the heads of rare depths learn as fast as those of probable ones: their
            gradients without the factor q(ℓ), which moves no zero of the gradient.
        equal_layers: let the layers that only improbable depths use learn as fast as the first:
            their gradients without the factor q(ℓ≥k), which moves no zero of it either.
    """

    clip: float | None = None
    autocast: torch.dtype | None = None
    micro_batches: int = 1
    drop_inactive: bool = False
    depth_rule: "DepthRule | None" = None
    equal_heads: bool = False
    equal_layers: bool = False

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise ValueError(
                f"autocast must be torch.bfloat16 or torch.float16, got {self.autocast}"
            )
        count = self.micro_batches
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"micro_batches must be an integer of at least 1, got {count!r}")


DEPTH_LR_RATIO = 0.1
"""λ learns at a tenth of the weights' rate, as on the paper's spirals."""


@dataclass(frozen=True)
class FitOptions(StepOptions):
    """The options of `unbounded.fit` beyond its own arguments; those of a step come first.

    Attributes:
        depth_lr_ratio: rate of λ, as a multiple of `lr`; a list has one for each model.
        optimizer: a `torch.optim` class, or a partial of one such as
            `partial(torch.optim.SGD, momentum=0.9)`; Adam by default. For one model also an
            optimiser that is built already: see `make_optimizer` and `param_groups`.
        scheduler: a `torch.optim.lr_scheduler`, or what makes one of the optimiser.
        schedule_every: when the scheduler steps, "epoch" or "step".
        schedule: epoch (from 0) ↦ a factor of all learning rates.
        depth_schedule: epoch ↦ a further factor of λ's rate; 0 holds λ still.
        select: the best epoch by the likelihood's "score" (accuracy, RMSE; the log score breaks
            ties) or by the "log_score"; "last" keeps the last one, whatever validation says.
        average: score and keep a moving average of the parameters, with this decay a step
            (shorter memory in the first steps).
        grow_every: update the support before every "step" (default) or "epoch".
        history_every: epochs between rows of the history.
        checkpoint_every: epochs between checkpoints; by default one every 20 seconds. One is
            written at the end in any case.
        num_data: n, where a DataLoader's data set has no length.
        chunk: models at a time, where all at once would not fit into memory.
        shard: of several processes each holds a part of every layer, its moments and its best
            epoch. The model stays in shards afterwards: see docs/scaling.md.
        sync_batch_norm: of several processes, let batch norms see the rows of all of them.
    """

    depth_lr_ratio: float | Sequence[float] = DEPTH_LR_RATIO
    optimizer: Any = None
    scheduler: Any = None
    schedule_every: str = "epoch"
    schedule: Callable[[int], float] | None = None
    depth_schedule: Callable[[int], float] | None = None
    select: str = "score"
    average: float | None = None
    grow_every: str = "step"
    history_every: int = 1
    checkpoint_every: int | None = None
    num_data: int | None = None
    chunk: int | None = None
    shard: bool = False
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (
            ("schedule_every", ("epoch", "step")),
            ("grow_every", ("epoch", "step")),
            ("select", ("score", "log_score", "last")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("history_every", "checkpoint_every", "chunk"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average must be strictly between 0 and 1, got {self.average}")
        if self.scheduler is not None and (self.schedule or self.depth_schedule):
            raise ValueError("scheduler and schedule both set the learning rates: give one of them")
        if self.scheduler is None and self.schedule_every == "step":
            raise ValueError("schedule_every='step' needs a scheduler; schedule goes by epochs")
        if self.depth_schedule is not None and self.depth_rule is not None:
            raise ValueError("depth_schedule is of the optimiser's rate: a depth_rule has none")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "FitOptions":
        """Options by their names; a TypeError that lists all names if one is unknown."""
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise TypeError(f"fit has no option {unknown[0]!r}; its options are {', '.join(names)}")
        return cls(**given)

    def factors(self, epoch: int) -> tuple[float, float]:
        """What multiplies the rates of the weights and of λ in an epoch, counted from 0."""
        factor = 1.0 if self.schedule is None else float(self.schedule(epoch))
        further = 1.0 if self.depth_schedule is None else float(self.depth_schedule(epoch))
        return factor, factor * further
