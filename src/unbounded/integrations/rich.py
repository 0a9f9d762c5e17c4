"""A progress bar by rich, in place of the one by tqdm."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unbounded import parallel
from unbounded.integrations.extras import imported
from unbounded.training.callbacks import Callback
from unbounded.training.progress import epoch_text

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer


class RichProgress(Callback):
    """A bar over epochs with the time left, the ELBO, the validation score, E[ℓ] and m.

    Say `fit(..., progress=False, callbacks=[RichProgress(epochs)])`. Of several processes the first
    one draws (the extra `unbounded[rich]`).

    Args:
        epochs: as `fit` gets them.
        console: a `rich.console.Console`; one on standard error by default.
    """

    def __init__(self, epochs: int, console: Any = None):
        progress, base = imported("rich.progress", "rich"), imported("rich.console", "rich")
        self.epochs, self._shown = epochs, parallel.rank() == 0
        self._bar = progress.Progress(
            progress.TextColumn("[progress.description]{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[seen]}", markup=False),
            console=base.Console(stderr=True) if console is None else console,
        )

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Begin where a resumed run is."""
        self._task = self._bar.add_task(
            "epochs", total=self.epochs, completed=trainer.epoch, seen=""
        )
        if self._shown:
            self._bar.start()

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Count, and tell what there is."""
        seen = epoch_text(row, trainer.model.likelihood.score_name)
        self._bar.update(self._task, completed=row["epoch"], seen=seen)

    def on_fit_end(self, trainer: "Trainer") -> None:
        """Leave the last state standing."""
        self._bar.stop()
