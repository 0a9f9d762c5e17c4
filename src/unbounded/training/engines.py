"""How a step of `fit` is carried out: the interface, and the plain way."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from unbounded.training.batches import Batch
from unbounded.training.step import step

if TYPE_CHECKING:
    from unbounded.training.loop import Trainer


class Done(NamedTuple):
    """What a step leaves behind."""

    terms: Sequence[Tensor]  # the three terms of 𝓛, scalars on the model's device
    births: range  # hidden layers that were born before it


class Engine(ABC):
    """Carries out the steps of one run of `fit`. Everything around them is the same for all."""

    capture_seconds: float = 0.0
    """How much of the run went into capturing and compiling."""

    def start(self, trainer: "Trainer") -> None:
        """Before the first step, after a checkpoint was read."""
        self.trainer = trainer

    @abstractmethod
    def step(self, batch: Batch, *, grow: bool) -> Done:
        """One step on a batch; `grow` says whether to compute the support before it."""

    def end_epoch(self) -> None:  # noqa: B027
        """Before the model is looked at: nothing may be under way after this."""

    def check(self, terms: list[float]) -> None:  # noqa: B027
        """Raise if the epoch's mean terms are not finite, where steps do not look themselves."""

    def end(self) -> None:
        """After the last step: let go of everything."""
        del self.trainer


class Eager(Engine):
    """One operation after another, as written, with λ read by the host before each step."""

    def step(self, batch: Batch, *, grow: bool) -> Done:
        """`unbounded.step` with the run's options."""
        trainer = self.trainer
        x, y, weights = batch
        info = step(
            trainer.model,
            trainer.optimizer,
            x,
            y,
            float(trainer.data.num_data),
            weights=weights,
            grow=grow,
            drop_inactive=trainer.drop_inactive,
            clip=trainer.clip,
            autocast=trainer.autocast,
            scaler=trainer.scaler,
            depth_rule=trainer.depth_rule,
            equal_heads=trainer.equal_heads,
            equal_layers=trainer.equal_layers,
            at=f" at step {trainer.step + 1} (epoch {trainer.epoch + 1})",
        )
        return Done(info.terms, info.growth.hidden)
