"""Hooks into `fit`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbounded import parallel
from unbounded.depth import TruncatedConwayMaxwell
from unbounded.steps.depth_rules import DepthRule

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer


class Callback:
    """Override what you need. `trainer` has the model, optimizer, history and `stop()`.

    Of several models `trainer.models` has all, `trainer.rows` this epoch's row of each, and
    `row` is the mean over them.
    """

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Before the first epoch, after a checkpoint was read."""

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """Hidden layers of these depths were just born, of the model number `trainer.member`."""

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """After an epoch, with its row of the history; the checkpoint is written already."""

    def on_fit_end(self, trainer: "Trainer") -> None:
        """After the last epoch, with the best epoch restored."""


class Sharpen(Callback):
    """Look for λ with a wide family, then go on with a narrow one around the mode that was found.

    A family that is spread widely sees many depths and is not caught by the first that is a little
    better than its neighbours. But all its heads pull at the layers that they share, and
    the bound pays for each shallow one. Once λ is found, narrow members around the same mode are
    the better approximation: deterministic annealing of q(ℓ), in one step.

    The model's family must be a `TruncatedConwayMaxwell` (with ν = 1 it starts as the
    paper's Poisson), and λ be moved by a `DepthRule` that can `rest`.

    Args:
        epoch: after which ν changes and λ rests.
        concentration: ν from then on.
    """

    def __init__(self, epoch: int, concentration: float):
        self.epoch, self.concentration = epoch, concentration

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Refuse families and rules that it cannot change; the run may be beyond the epoch."""
        if len(trainer.models) > 1:
            raise ValueError("Sharpen works on one model, not on several")
        if not isinstance(trainer.model.depth, TruncatedConwayMaxwell):
            family = type(trainer.model.depth).__name__
            raise ValueError(f"Sharpen needs a TruncatedConwayMaxwell, got {family}")
        if trainer.depth_rule is None:
            raise ValueError("Sharpen needs a depth_rule, such as RateAscent()")
        if type(trainer.depth_rule).rest is DepthRule.rest:  # now, and not after many epochs
            name = type(trainer.depth_rule).__name__
            raise ValueError(f"Sharpen needs a depth_rule that can rest; {name} has no `rest`")
        self._look(trainer)

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Sharpen once the epoch has come."""
        self._look(trainer)

    def _look(self, trainer: "Trainer") -> None:
        family, rule = trainer.model.depth, trainer.depth_rule
        if trainer.epoch >= self.epoch:
            assert isinstance(family, TruncatedConwayMaxwell)
            assert rule is not None  # see `on_fit_start`
            family.sharpen(self.concentration)
            rule.rest()


class TensorBoard(Callback):
    """Write every column of the history to TensorBoard (the extra `unbounded[tensorboard]`).

    Of several processes the first one does.

    Args:
        folder: where the event files go.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard logging needs the package tensorboard: "
                "pip install 'unbounded[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(self.folder) if parallel.rank() == 0 else None

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """A text entry for each birth."""
        for depth in depths:
            if self._writer is not None:
                self._writer.add_text("births", f"layer {depth}", trainer.step)

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """A scalar for each column."""
        for name, value in row.items():
            if self._writer is not None and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["epoch"])

    def on_fit_end(self, trainer: "Trainer") -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
