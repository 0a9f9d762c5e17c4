"""The loop around the steps: epochs, validation, the best epoch, patience, history, checkpoints."""

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbounded import interrupts, printing
from unbounded.engines import Engine
from unbounded.engines.base import Birth, Row, TrainingTask
from unbounded.model import UDN
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.options import FitOptions
from unbounded.steps.step import NonFiniteError
from unbounded.training import agreement
from unbounded.training import checkpoint as checkpoints
from unbounded.training.best import BestEpoch, has_moved_on
from unbounded.training.callbacks import Callback, takes_steps
from unbounded.training.fingerprint import fingerprint
from unbounded.training.history import History, mean_row
from unbounded.training.progress import Progress

SECONDS_BETWEEN_CHECKPOINTS = 20.0


MANY_LAYERS = 100
"""At this depth, and at each doubling, a warning says that the depth keeps growing."""


class TrainingWarning(UserWarning):
    """Training went on or ended otherwise than one would expect; says what to change."""


@dataclass
class MemberProgress:
    """Where one model stands."""

    model: UDN
    history: History = field(default_factory=History)
    best: BestEpoch | None = None
    bad_epochs: int = 0
    epochs: int = 0
    row: Row = field(default_factory=dict)  # the latest, in the history or not
    stopped: str = ""  # why it trains no more


@dataclass
class FitResult:
    """How the training of a model ended."""

    history: History
    best_epoch: int
    """The epoch whose weights the model now has."""
    best_score: float | None
    """Its validation score, if there was a validation set."""
    best_row: Row
    """The history's row of that epoch, kept even where the history is thinned out."""
    stopped: str
    """Why it ended: "epochs", "patience", "interrupted" (by Ctrl-C or SIGTERM), "callback",
    "memory" (the next layers would not fit) or "diverged"."""
    seconds: float
    optimizer: Any
    """The optimiser, where the model had one of its own."""


class Trainer:
    """A run of `fit`; what callbacks and checkpoints see.

    Args:
        task: what to do, given whom to tell of births.
        engine: who does it.
        lone: whether a loss that is no number is an error, rather than one model's end.
        patience: epochs without a better validation score after which a model stops.
        callbacks: whom to tell of epochs.

    Attributes:
        models: in training; `model` is the first of them.
        members: where each of them stands.
        epoch: how many are done.
        member: the model that `on_birth` is about, counted from 0.
        rows: this epoch's row of each model, None for those that train no more.
        step_rows: this step's row of each, for callbacks with `on_step_end`.
        processes: who share the rows; the first of them talks and writes.
    """

    def __init__(
        self,
        task: Callable[[Callable[[int, Birth], None]], TrainingTask],
        engine: Engine,
        *,
        lone: bool,
        patience: int | None,
        callbacks: Iterable[Callback],
    ):
        self.lone, self.engine, self.patience = lone, engine, patience
        self.task = task(self._born)
        self.options: FitOptions = self.task.options
        self.processes = self.task.processes
        self.members = [MemberProgress(model) for model in self.task.models]
        self.callbacks = list(callbacks)
        self.epoch, self.seconds, self.member = 0, 0.0, 0
        self.rows: list[Row | None] = [None] * len(self.members)
        self.step_rows: list[Row | None] = [None] * len(self.members)
        self._steps = [0] * len(self.members)  # of each model, that callbacks were told of
        self._each_step = [c for c in self.callbacks if takes_steps(c)]
        self.stopping = False
        self.fingerprint: dict[str, Any] = {}  # made where there is a checkpoint to hold it
        self.between_epochs = True
        self._many = MANY_LAYERS
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if patience is not None and self.options.select == "last":
            raise ValueError("patience waits for a better epoch: it does not go with select='last'")
        if patience is not None and not self.task.validates:
            raise ValueError("patience needs a validation set")
        engine.start(self.task)

    @property
    def models(self) -> list[UDN]:
        """The models in training."""
        return [member.model for member in self.members]

    @property
    def model(self) -> UDN:
        """The model, or the first of several."""
        return self.members[0].model

    @property
    def history(self) -> History:
        """The history of the model, or of the first of several."""
        return self.members[0].history

    @property
    def step(self) -> int:
        """Steps taken by the model, or by the first of several, until the last epoch's end."""
        return int(self.members[0].row.get("step", 0))

    @property
    def optimizer(self) -> Any:
        """The optimiser of the model, or of the first of several."""
        return self.engine.optimizer(0)

    @property
    def depth_rule(self) -> DepthRule | None:
        """What moves λ, if not the optimiser."""
        return self.options.depth_rule

    def stop(self) -> None:
        """Ask for an end after this epoch; for callbacks."""
        self.stopping = True

    def run(
        self,
        epochs: int,
        *,
        progress: bool | None,
        checkpoint: str | Path | None,
        resume: bool,
        resume_despite: frozenset[str] = frozenset(),
    ) -> list[FitResult]:
        """Train until `epochs` passes are done or something ends it earlier."""
        with self.processes.agreeing():
            if checkpoint is not None or self.processes.size > 1:
                self.fingerprint = fingerprint(self)
        agreement.check_start(self, epochs, checkpoint, resume)
        if checkpoint is not None and resume and Path(checkpoint).exists():
            self._go_on(checkpoint, resume_despite)
        show = sys.stderr.isatty() if progress is None else progress
        show = show and self.processes.is_first
        bar = Progress(epochs, self.epoch, self.model.likelihood.score_name, show)
        modes = [model.training for model in self.models]
        writer = _Writer(self, checkpoint)
        with interrupts.deferred() as request:
            try:
                ended = self._epochs(epochs, writer, bar, request)
            except KeyboardInterrupt:  # a second request, or one that was not for us to defer
                ended = "interrupted"
                with interrupts.shielded():
                    # The others may be anywhere: only one who is alone can write now.
                    if self.between_epochs and self.epoch and self.processes.size == 1:
                        writer.write()
            except BaseException as error:
                with interrupts.shielded():
                    self._finish(modes)
                if isinstance(error, NonFiniteError) and self.members[0].epochs:
                    error.result = self._result(0, "diverged")
                raise
            finally:
                bar.close()
            with interrupts.shielded():
                self._finish(modes)
        if ended == "interrupted" and show:
            what = f"stopped by {_name(request)} in epoch {self.epoch + 1}"
            printing.show(f"{what}; kept {self._kept(0)}", sys.stderr)
        for callback in self.callbacks:
            callback.on_fit_end(self)
        return [self._result(number, ended) for number in range(len(self.members))]

    def _go_on(self, checkpoint: str | Path, despite: frozenset[str]) -> None:
        """Go on from the checkpoint."""
        try:
            with self.processes.agreeing():
                checkpoints.load(self, checkpoint, despite)
            agreement.check_alike(self)
        except BaseException:
            self.engine.let_go()
            raise
        self._revive()

    def _epochs(
        self, epochs: int, writer: "_Writer", bar: Progress, request: interrupts.Request
    ) -> str:
        for callback in self.callbacks:
            callback.on_fit_start(self)
        while self.epoch < epochs and not all(member.stopped for member in self.members):
            # With a checkpoint the epoch is finished, so that nothing of it is lost.
            if not self._epoch(epochs, request, writer.path is not None):
                return "interrupted"
            ends = self.epoch == epochs or all(member.stopped for member in self.members)
            due, asked = agreement.check_alike(self, writer.is_due, request.is_set())
            if ends or due:
                writer.write()
            if any(row is not None for row in self.rows):
                self._tell(bar)
            if any(self.processes.gather(self.stopping)):
                writer.write()
                return "callback"
            if asked or (self.processes.size == 1 and request.is_set()):
                if not ends:
                    writer.write()
                return "interrupted"
        return "epochs"

    def _tell_step(self) -> None:
        """Callbacks of single steps; of several models some may have had no batch left."""
        rows: list[Row | None] = []
        for number, row in enumerate(self.engine.step_terms()):
            if row is not None and row["step"] != self._steps[number]:
                self._steps[number] = row["step"]
                elbo = row["expected_log_lik"] - row["depth_kl"] - row["weight_kl"]
                rows.append({"epoch": self.epoch + 1, **row, "elbo": elbo})
            else:
                rows.append(None)
        self.step_rows = rows
        if any(row is not None for row in rows):
            for callback in self._each_step:
                callback.on_step_end(self, mean_row(rows))

    def _tell(self, bar: Progress) -> None:
        if self.callbacks:
            self.engine.show()
        for callback in self.callbacks:
            callback.on_epoch_end(self, self._mean_row())
        bar.update(self._mean_row())

    def _epoch(self, epochs: int, request: interrupts.Request, finishes: bool) -> bool:
        """One pass over the data; False if it was interrupted on the way."""
        start = time.perf_counter()
        self.between_epochs, told = False, False
        self.engine.begin_epoch(self.epoch)
        each_step = self.options.grow_every == "step"
        first = True
        while self.engine.step(each_step or first):
            first = False
            if self._each_step:
                self._tell_step()
            self.processes.asks_end = request.is_set()  # told with the next step
            asked = self.processes.end_asked(request.is_set())
            if asked and not finishes:
                return False
            if asked and not told:
                told = True
                words = f"finishing epoch {self.epoch + 1} for the checkpoint; again ends at once"
                if self.processes.is_first:
                    printing.show(f"{_name(request)}: {words}", sys.stderr)
        self.rows = self.engine.end_epoch()
        self.epoch += 1
        self.seconds += time.perf_counter() - start
        self._note_failures()
        better = []
        for number, (member, found) in enumerate(zip(self.members, self.rows, strict=True)):
            if found is None:
                continue
            row = self.rows[number] = self._completed(found)
            member.epochs, member.row = self.epoch, row
            if self.task.validates and self._improves(member, row):
                better.append(number)
            if self.patience is not None and member.bad_epochs >= self.patience:
                member.stopped = "patience"
                self.engine.stop(number)
            if self.epoch % self.options.history_every == 0 or self.epoch == epochs:
                member.history.rows.append(row)
            score = row.get(f"val_{member.model.likelihood.score_name}", -row["elbo"])
            self.engine.step_schedulers(number, score)
        if better:
            self.engine.keep_best(better)
        self.between_epochs = True
        return True

    def _completed(self, found: Row) -> Row:
        """An engine's columns with those that are the same for all engines, in their order."""
        terms = found["expected_log_lik"], found["depth_kl"], found["weight_kl"]
        start = {"epoch": self.epoch, "step": found["step"], "seconds": self.seconds}
        return {**start, "elbo": terms[0] - terms[1] - terms[2], **found}

    def _improves(self, member: MemberProgress, row: Row) -> bool:
        likelihood = member.model.likelihood
        log_score = row["val_log_score"]
        score = row[f"val_{likelihood.score_name}"]
        if self.options.select == "log_score":
            score = log_score
        elif not likelihood.higher_is_better:
            score = -score
        key, best = (score, log_score), member.best
        slack = 0.0 if self.depth_rule is None else self.depth_rule.slack
        if best is not None and key <= best.key and not has_moved_on(row, key, best, slack):
            member.bad_epochs += 1
            return False
        highest = key if best is None else max(key, best.highest)
        member.best, member.bad_epochs = BestEpoch(self.epoch, key, row, highest), 0
        return True

    def _note_failures(self) -> None:
        for number, why in self.engine.failures().items():
            if self.lone:
                raise NonFiniteError(why)
            self.members[number].stopped = "diverged"
        for number, why in self.engine.outgrown().items():
            member = self.members[number]
            if member.stopped != "memory":
                member.stopped = "memory"
                which = "" if self.lone else f" of model {number}"
                self._warn(
                    f"training{which} stopped in epoch {self.epoch}, {self._kept(number)} kept: "
                    f"{why}"
                )

    def _revive(self) -> None:
        """Those that had outgrown the memory go on: there may be more of it now."""
        for number, member in enumerate(self.members):
            if member.stopped == "memory":
                member.stopped = ""
                self.engine.revive(number)

    def _kept(self, number: int) -> str:
        best = self.members[number].best
        return "the last weights" if best is None else f"epoch {best.epoch}"

    def _mean_row(self) -> Row:
        """This epoch's row, or the mean over the models that have one."""
        return mean_row(self.rows) or self.members[0].row

    def _born(self, number: int, birth: Birth) -> None:
        for depth in birth.depths:
            self.members[number].history.births.append(
                {"step": birth.step, "epoch": self.epoch + 1, "depth": depth}
            )
        self.member = number
        if birth.depths.stop > self._many:
            deepest = birth.depths.stop - 1
            while self._many <= deepest:
                self._many *= 2
            self._warn(
                f"{deepest} layers are born by epoch {self.epoch + 1} and the depth keeps growing: "
                "limit= of the depth family bounds it, the next line comes at "
                f"{self._many} layers"
            )
        for callback in self.callbacks:
            callback.on_birth(self, birth.depths)

    def _warn(self, text: str) -> None:
        """To whoever called `fit`."""
        if self.processes.is_first:
            warnings.warn(text, TrainingWarning, stacklevel=6)

    def _finish(self, modes: list[bool]) -> None:
        self.engine.finish(self.task.validates)
        for member in self.members:
            if member.stopped == "memory" and member.best is None:
                # λ back to where there are layers: what it asked for will never be.
                member.model.depth.withdraw(member.model.network.num_layers)
        for model, mode in zip(self.models, modes, strict=True):
            model.train(mode)

    def _result(self, number: int, ended: str) -> FitResult:
        member = self.members[number]
        best, likelihood = member.best, member.model.likelihood
        score = None
        if best is not None:
            better = self.options.select == "log_score" or likelihood.higher_is_better
            score = best.key[0] if better else -best.key[0]
        return FitResult(
            member.history,
            member.epochs if best is None else best.epoch,
            score,
            member.row if best is None else best.row,
            member.stopped or ended,
            self.seconds,
            self.engine.optimizer(number),
        )


def _name(request: interrupts.Request) -> str:
    return request.name if request.is_set() else "another process"


class _Writer:
    """Writes checkpoints when it is time."""

    def __init__(self, trainer: Trainer, path: str | Path | None):
        self.trainer, self.path = trainer, path
        self.last, self.pause = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS

    @property
    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        every = self.trainer.options.checkpoint_every
        if every is None:
            return time.monotonic() - self.last > self.pause
        return self.trainer.epoch % every == 0

    def write(self) -> None:
        """Write now; what the writer cannot do is an error of all processes."""
        if self.path is None:
            return
        begun = time.monotonic()
        with self.trainer.processes.agreeing():
            checkpoints.save(self.trainer, self.path)
        self.last = time.monotonic()
        # Saving a large network often would take a share of the training's time.
        self.pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (self.last - begun))
