"""Hooks into `fit`."""

from abc import ABC, abstractmethod
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

    each_step: bool = True
    """Whether an `on_step_end` of one's own is called: it makes the host wait at every step."""

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Before the first epoch, after a checkpoint was read."""

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """Hidden layers of these depths were just born, of the model number `trainer.member`."""

    def on_step_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """After a step: its number, epoch, ELBO and terms, `trainer.step_rows` for each model.

        Where no callback has it, nothing is computed for it.
        """

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """After an epoch, with its row of the history; the checkpoint is written already."""

    def on_fit_end(self, trainer: "Trainer") -> None:
        """After the last epoch, with the best epoch restored."""


def takes_steps(callback: Callback) -> bool:
    """Whether it has an `on_step_end` of its own and wants it, be it a `Callback` or alike."""
    own = getattr(callback, "on_step_end", Callback.on_step_end)
    wanted = getattr(callback, "each_step", True)
    return wanted and getattr(own, "__func__", own) is not Callback.on_step_end


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


class Logger(Callback, ABC):
    """Hands the numbers of training on; a subclass says where to, by `write` and `note`.

    After each epoch those of its row of the history, at the step that it ended with. Of single
    steps the ELBO and its terms, as `steps/elbo`. Of several processes the first one writes.

    Args:
        every: steps between rows of single steps; None: epochs alone.
    """

    def __init__(self, every: int | None = None):
        if every is not None and (isinstance(every, bool) or every < 1):
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self.each_step = every, every is not None
        self.writes = parallel.rank() == 0

    @abstractmethod
    def write(self, values: dict[str, float], step: int) -> None:
        """Numbers by name, at a step of training."""

    def note(self, depth: int, step: int) -> None:
        """The birth of a layer; a subclass without a place for it leaves it out."""

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """A note for each layer."""
        step = trainer.members[trainer.member].history.births[-1]["step"]
        for depth in depths:
            if self.writes:
                self.note(depth, step)

    def on_step_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """The ELBO and its terms."""
        if self.writes and self.every is not None and row["step"] % self.every == 0:
            values = {f"steps/{name}": row[name] for name in row if name not in ("epoch", "step")}
            self.write(values, row["step"])

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """A number for each column."""
        if self.writes:
            numbers = {name: v for name, v in row.items() if isinstance(v, int | float)}
            self.write(numbers, row["step"])


class TensorBoard(Logger):
    """Write the numbers of training to TensorBoard (the extra `unbounded[tensorboard]`).

    Columns of the history stand over epochs, single steps over steps.

    Args:
        folder: where the event files go.
        every: steps between rows of single steps; None: epochs alone.
    """

    def __init__(self, folder: str | Path, every: int | None = None):
        super().__init__(every)
        self.folder = Path(folder)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard logging needs the package tensorboard: "
                "pip install 'unbounded[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(self.folder) if self.writes else None

    def write(self, values: dict[str, float], step: int) -> None:
        """A scalar for each."""
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, int(values.get("epoch", step)))

    def note(self, depth: int, step: int) -> None:
        """An entry among the texts."""
        assert self._writer is not None
        self._writer.add_text("births", f"layer {depth}", step)

    def on_fit_end(self, trainer: "Trainer") -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
