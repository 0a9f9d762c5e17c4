"""Numbers of training for Weights & Biases, MLflow, and whatever else can log a dictionary."""

from typing import TYPE_CHECKING, Any, Protocol

from unbounded.integrations.extras import imported
from unbounded.training.callbacks import Logger

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer


class Run(Protocol):
    """What `LogTo` needs: a run of Weights & Biases has it, and so may an object of your own."""

    def log(self, data: dict[str, Any], step: int) -> Any:
        """Numbers and texts by name, at a step that never falls."""


class LogTo(Logger):
    """Hand the numbers of training to any object with `log(data, step)`, such as `wandb.init()`.

    Both epochs and single steps stand over the steps of training, which only rise. Births come as
    `births`, the deepest layer that is there. The run stays open: who opened it ends it.

    Args:
        run: the object.
        every: steps between rows of single steps; None: epochs alone.

    Example:
        >>> ub.fit(model, x, y, callbacks=[LogTo(wandb.init(mode="offline"), every=50)])
    """

    def __init__(self, run: Run, every: int | None = None):
        super().__init__(every)
        self.run = run

    def write(self, values: dict[str, float], step: int) -> None:
        """One call for all."""
        self.run.log(values, step=step)

    def note(self, depth: int, step: int) -> None:
        """The layer as a number, for a line over steps."""
        self.run.log({"births": depth}, step=step)


class MLflow(Logger):
    """Log the numbers of training as metrics of MLflow (the extra `unbounded[mlflow]`).

    Into the active run; where there is none, one is begun and ended with the training. The model's
    parts, epochs and rates are its parameters.

    Args:
        every: steps between rows of single steps; None: epochs alone.
    """

    def __init__(self, every: int | None = None):
        super().__init__(every)
        self._mlflow = imported("mlflow", "mlflow")
        self._began = False

    def on_fit_start(self, trainer: "Trainer") -> None:
        """The run, and what it trains."""
        if not self.writes:
            return
        if self._mlflow.active_run() is None:
            self._mlflow.start_run()
            self._began = True
        model, task = trainer.model, trainer.task
        parts = ("layers", "likelihood", "depth", "depth_prior", "weight_prior")
        found: dict[str, Any] = {name: type(getattr(model, name)).__name__ for name in parts}
        found |= {"models": len(trainer.models), "batch_size": task.batch_size, "lr": task.lr[0]}
        known = self._mlflow.active_run().data.params  # a resumed run has told them already
        self._mlflow.log_params({k: v for k, v in found.items() if k not in known})

    def write(self, values: dict[str, float], step: int) -> None:
        """One call for all."""
        self._mlflow.log_metrics(values, step=step)

    def note(self, depth: int, step: int) -> None:
        """The layer as a number, for a line over steps."""
        self._mlflow.log_metric("births", float(depth), step=step)

    def on_fit_end(self, trainer: "Trainer") -> None:
        """End the run, if it was begun here."""
        if self._began:
            self._mlflow.end_run()
            self._began = False
