"""Trials of Optuna that end early where others were better by then."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unbounded.integrations.extras import imported
from unbounded.training.callbacks import Callback

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer


class Pruning(Callback):
    """Report a column of the history to a trial after each epoch, and end it if it is pruned.

    `fit` then raises `optuna.TrialPruned`, with the model at its best epoch. Depth needs no search,
    so that a study is over width, rates and the like (the extra `unbounded[optuna]`).

    Args:
        trial: of `study.optimize`.
        column: of the history; the study's direction says whether more of it is better.
    """

    def __init__(self, trial: Any, column: str = "val_log_score"):
        self._optuna = imported("optuna", "optuna")
        self.trial, self.column, self.pruned = trial, column, False

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Report, and ask."""
        if self.column not in row:
            names = ", ".join(sorted(row))
            raise ValueError(f"the history has no column {self.column!r}; there are {names}")
        self.trial.report(float(row[self.column]), step=int(row["epoch"]))
        if self.trial.should_prune():
            self.pruned = True
            trainer.stop()

    def on_fit_end(self, trainer: "Trainer") -> None:
        """Tell the study, once the model has its best weights again."""
        if self.pruned:
            epoch = trainer.epoch
            raise self._optuna.TrialPruned(f"pruned after epoch {epoch} by {self.column}")
