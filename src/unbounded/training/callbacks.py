"""Hooks into `fit`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbounded.training.loop import Trainer


class Callback:
    """Override what you need. `trainer` has the model, optimizer, history and `stop()`."""

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Before the first epoch, after a checkpoint was read."""

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """Hidden layers of these depths were just born."""

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """After an epoch, with its row of the history; the checkpoint is written already."""

    def on_fit_end(self, trainer: "Trainer") -> None:
        """After the last epoch, with the best epoch restored."""


class TensorBoard(Callback):
    """Write every column of the history to TensorBoard (the extra `unbounded[tensorboard]`).

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
        self._writer = SummaryWriter(self.folder)

    def on_birth(self, trainer: "Trainer", depths: range) -> None:
        """A text entry for each birth."""
        for depth in depths:
            self._writer.add_text("births", f"layer {depth}", trainer.step)

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """A scalar for each column."""
        for name, value in row.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["epoch"])

    def on_fit_end(self, trainer: "Trainer") -> None:
        """Close the file."""
        self._writer.close()
