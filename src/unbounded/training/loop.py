"""`fit`: epochs, validation, the best epoch, schedules, progress, checkpoints."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from unbounded import growth
from unbounded.predictive import evaluating
from unbounded.training import checkpoint as checkpoints
from unbounded.training.batches import ArrayBatches, Batches, batches
from unbounded.training.callbacks import Callback
from unbounded.training.depth_rules import DepthRule
from unbounded.training.engines import Eager, Engine
from unbounded.training.history import History, Row
from unbounded.training.images import ImageBatches
from unbounded.training.optimizers import DEPTH_LR_RATIO, make_optimizer
from unbounded.training.progress import Progress
from unbounded.training.scoring import Scorer
from unbounded.training.step import NonFiniteError

if TYPE_CHECKING:
    from unbounded.model import UDN

Scheduler = LRScheduler | ReduceLROnPlateau
SECONDS_BETWEEN_CHECKPOINTS = 20.0
# Rows scored at a time. Large, since no gradients are kept; small enough for hidden states.
_SCORING_ROWS = 8192


@dataclass
class Best:
    """The best epoch so far."""

    epoch: int
    key: tuple[float, float]  # (score, log score), both so that larger is better
    num_layers: int
    state: dict[str, Tensor]  # the model's, copied


@dataclass
class FitResult:
    """What `fit` did."""

    history: History
    best_epoch: int
    """The epoch whose weights the model now has."""
    best_score: float | None
    """Its validation score, if there was a validation set."""
    stopped: str
    """Why it ended: "epochs", "patience", "interrupted" or "callback"."""
    seconds: float
    optimizer: torch.optim.Optimizer


def fit(
    model: "UDN",
    x: Any,
    y: Any = None,
    *,
    validation: Any = None,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 0.005,
    depth_lr_ratio: float = DEPTH_LR_RATIO,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None = None,
    schedule_every: str = "epoch",
    patience: int | None = None,
    select: str = "score",
    weights: Any = None,
    monitor: Mapping[str, Any] | None = None,
    num_data: int | None = None,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    grow_every: str = "step",
    drop_inactive: bool = False,
    depth_rule: DepthRule | None = None,
    equal_heads: bool = False,
    equal_layers: bool = False,
    engine: Engine | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    seed: int | None = None,
) -> FitResult:
    """Train a model by dynamic variational inference (the paper's Algorithm 1).

    Main args:
        model: trained in place, on the device it is on.
        x: inputs `(rows, …)` as a tensor, array or frame; or `ImageData`, or a DataLoader of
            (x, y) pairs.
        y: targets `(rows, …)`; only with inputs alone.
        validation: (x, y), `ImageData` or a DataLoader. With it the best epoch is restored at
            the end.
        epochs: how many passes over the data, in all (a resumed run counts its earlier ones).
        batch_size: rows a step.
        lr: rate of the weights, with Adam.
        depth_lr_ratio: rate of λ, as a multiple of `lr`.

    Other args:
        optimizer: any of `torch.optim` instead; see `make_optimizer` and `param_groups`.
        scheduler: a `torch.optim.lr_scheduler`, or what makes one of the optimiser.
        schedule_every: "epoch" or "step".
        patience: stop after this many epochs without a better validation score.
        select: the best epoch by the likelihood's "score" (accuracy, RMSE; the log score breaks
            ties) or by the "log_score".
        weights: how often each training row counts, `(rows,)`.
        monitor: further sets to score every epoch, such as {"test": (x, y)}.
        num_data: n, where a DataLoader's data set has no length.
        clip: largest norm of the gradient of the loss −elbo/n.
        autocast: run the layers in this dtype (torch.bfloat16, torch.float16).
        grow_every: update the support before every "step" (default) or "epoch".
        drop_inactive: free layers that leave the support; by default they keep weights and
            optimiser state until they return.
        depth_rule: what moves λ instead of the optimiser, such as `RateAscent()`; by default the
            optimiser does, as in the paper.
        equal_heads: let the heads of rare depths learn as fast as those of probable ones: their
            gradients without the factor q(ℓ), which moves no zero of the gradient.
        equal_layers: let the layers that only improbable depths use learn as fast as the first:
            their gradients without the factor q(ℓ≥k), likewise.
        engine: how steps are carried out: `unbounded.engine.Eager()`, or `Graphs()` for CUDA
            graphs. By default graphs for `ImageData` on a CUDA device.
        callbacks: objects with the hooks of `Callback`.
        progress: show a progress bar; by default if standard error is a terminal.
        checkpoint: a file to write after epochs, atomically.
        checkpoint_every: epochs between checkpoints; by default one every 20 seconds. One is
            written at the end in any case.
        resume: go on from `checkpoint` if it exists: bit for bit, on a CPU.
        seed: of the shuffling; the model's seed by default.

    Returns:
        The history and how training ended. Ctrl-C ends it early and keeps the best epoch.

    Raises:
        ValueError: on data or arguments that cannot work, before any training.
        NonFiniteError: if the loss stops being a number; the best epoch is restored.
    """
    data = x if y is None else (x, y) if weights is None else (x, y, weights)
    trainer = Trainer(
        model,
        data,
        validation=validation,
        monitor=monitor,
        batch_size=batch_size,
        num_data=num_data,
        seed=model.seed if seed is None else seed,
    )
    trainer.configure(
        optimizer=optimizer,
        lr=lr,
        depth_lr_ratio=depth_lr_ratio,
        scheduler=scheduler,
        schedule_every=schedule_every,
        patience=patience,
        select=select,
        clip=clip,
        autocast=autocast,
        grow_every=grow_every,
        drop_inactive=drop_inactive,
        depth_rule=depth_rule,
        equal_heads=equal_heads,
        equal_layers=equal_layers,
        engine=engine,
        callbacks=callbacks,
    )
    return trainer.run(
        epochs,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
    )


class Trainer:
    """The state of a run of `fit`; what callbacks and checkpoints see."""

    def __init__(
        self,
        model: "UDN",
        data: Any,
        *,
        validation: Any,
        monitor: Mapping[str, Any] | None,
        batch_size: int,
        num_data: int | None,
        seed: int,
    ):
        self.model = model
        self.history = History()
        self.epoch = 0
        self.step = 0
        self.seconds = 0.0
        self.bad_epochs = 0
        self.best: Best | None = None
        self.stopping = False
        self.lambdas: list[Tensor] | None = None  # of an engine that sees λ late
        generator = torch.Generator().manual_seed(seed)
        self.data = _training_batches(model, data, batch_size, generator, num_data)
        self.sets: dict[str, Batches] = {}
        if validation is not None:
            self.sets["val"] = batches(
                validation, model, what="validation", batch_size=_SCORING_ROWS
            )
        for name, extra in (monitor or {}).items():
            if name == "val":
                raise ValueError("monitor: the name 'val' is taken by the validation set")
            self.sets[name] = batches(extra, model, what=name, batch_size=_SCORING_ROWS)
        self.scorer = Scorer(self.sets)
        _check_model(model, {"train": self.data, **self.sets})

    @property
    def generator(self) -> torch.Generator | None:
        """What shuffles the training data."""
        return self.data.generator

    def configure(
        self,
        *,
        optimizer: torch.optim.Optimizer | None,
        lr: float,
        depth_lr_ratio: float,
        scheduler: Scheduler | Callable[[torch.optim.Optimizer], Scheduler] | None,
        schedule_every: str,
        patience: int | None,
        select: str,
        clip: float | None,
        autocast: torch.dtype | None,
        grow_every: str,
        drop_inactive: bool,
        callbacks: Iterable[Callback],
        depth_rule: DepthRule | None = None,
        equal_heads: bool = False,
        equal_layers: bool = False,
        engine: Engine | None = None,
    ) -> None:
        """Check and keep what says how to train."""
        _one_of("schedule_every", schedule_every, ("epoch", "step"))
        _one_of("grow_every", grow_every, ("epoch", "step"))
        _one_of("select", select, ("score", "log_score"))
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if patience is not None and "val" not in self.sets:
            raise ValueError("patience needs a validation set")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        if autocast is not None and autocast not in (torch.bfloat16, torch.float16):
            raise ValueError(f"autocast must be torch.bfloat16 or torch.float16, got {autocast}")
        self.optimizer = (
            make_optimizer(self.model, lr=lr, depth_lr_ratio=depth_lr_ratio)
            if optimizer is None
            else optimizer
        )
        self.scheduler: Scheduler | None
        if scheduler is None or isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
            self.scheduler = scheduler
        else:
            self.scheduler = scheduler(self.optimizer)
        if schedule_every == "step" and isinstance(self.scheduler, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau looks at a score: it goes with schedule_every='epoch'"
            )
        self.schedule_every = schedule_every
        self.patience = patience
        self.select = select
        self.clip = clip
        self.autocast = autocast
        self.scaler: torch.amp.GradScaler | None = None
        if autocast is torch.float16:
            self.scaler = torch.amp.GradScaler(self.model.anchor.device.type)
        self.grow_every = grow_every
        self.drop_inactive = drop_inactive
        self.depth_rule = depth_rule
        if equal_heads and (self.model.network.shares_head or self.model.cumulative_heads):
            raise ValueError("equal_heads needs heads that are used at one depth each")
        self.equal_heads, self.equal_layers = equal_heads, equal_layers
        self.engine = self._default_engine() if engine is None else engine
        self.callbacks = list(callbacks)

    def _default_engine(self) -> Engine:
        """Graphs where they are possible, else one operation after another."""
        captures = self.model.anchor.is_cuda and self.scaler is None and not self.drop_inactive
        if captures and isinstance(self.data, ImageBatches):
            from unbounded.engine.captured import Graphs

            try:
                self.model.depth.log_probs_up_to(1)
            except NotImplementedError:
                return Eager()
            return Graphs()
        return Eager()

    def stop(self) -> None:
        """Ask for an end after this epoch; for callbacks."""
        self.stopping = True

    def run(
        self,
        epochs: int,
        *,
        progress: bool | None,
        checkpoint: str | Path | None,
        checkpoint_every: int | None,
        resume: bool,
    ) -> FitResult:
        """Train until `epochs` passes are done or something ends it earlier."""
        if int(epochs) != epochs or epochs < 1:
            raise ValueError(f"epochs must be an integer of at least 1, got {epochs!r}")
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")
        if resume and checkpoint is None:
            raise ValueError("resume needs the path of a checkpoint")
        if checkpoint is not None and not Path(checkpoint).parent.is_dir():
            raise ValueError(f"checkpoint: the folder {Path(checkpoint).parent} does not exist")
        if resume and checkpoint is not None and Path(checkpoint).exists():
            checkpoints.load(self, checkpoint)
        if self.depth_rule is not None:
            self.depth_rule.reserve(self.model, self.model.depth.max_depth())
        self.engine.start(self)
        show = sys.stderr.isatty() if progress is None else progress
        bar = Progress(epochs, self.epoch, self.model.likelihood.score_name, show)
        stopped = "epochs"
        was_training = self.model.training
        for callback in self.callbacks:
            callback.on_fit_start(self)
        last_saved, pause = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
        try:
            while self.epoch < epochs:
                row = self._epoch()
                stopped = self._after_epoch(row)
                due = (
                    time.monotonic() - last_saved > pause
                    if checkpoint_every is None
                    else self.epoch % checkpoint_every == 0
                )
                if checkpoint is not None and (due or stopped or self.epoch == epochs):
                    begun = time.monotonic()
                    checkpoints.save(self, checkpoint)
                    last_saved = time.monotonic()
                    # Saving a large network often would take a share of the training's time.
                    pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (last_saved - begun))
                for callback in self.callbacks:
                    callback.on_epoch_end(self, row)
                bar.update(row)
                if self.stopping:
                    stopped = "callback"
                    if checkpoint is not None:
                        checkpoints.save(self, checkpoint)
                if stopped:
                    break
            stopped = stopped or "epochs"
        except KeyboardInterrupt:
            stopped = "interrupted"
        except BaseException:
            self._restore_best()
            raise
        finally:
            bar.close()
            self.engine.end()
            self.model.train(was_training)
        self._restore_best()
        if stopped == "interrupted" and show:
            kept = "the last weights" if self.best is None else f"epoch {self.best.epoch}"
            print(f"stopped by Ctrl-C in epoch {self.epoch + 1}; kept {kept}", file=sys.stderr)
        for callback in self.callbacks:
            callback.on_fit_end(self)
        return FitResult(
            self.history,
            self.epoch if self.best is None else self.best.epoch,
            None if self.best is None else self._score_of(self.best),
            stopped,
            self.seconds,
            self.optimizer,
        )

    def set_best(
        self, epoch: int, key: tuple[float, float], num_layers: int, state: dict[str, Tensor]
    ) -> None:
        """Remember an epoch's weights as the best."""
        self.best = Best(epoch, key, num_layers, state)

    def _epoch(self) -> Row:
        """One pass over the data; returns its row of the history."""
        start = time.perf_counter()
        model, optimizer = self.model, self.optimizer
        each_step = self.grow_every == "step"
        per_step: LRScheduler | None = None
        if isinstance(self.scheduler, LRScheduler) and self.schedule_every == "step":
            per_step = self.scheduler
        if not model.training:
            model.train()
        sums: list[Tensor] = []
        for index, batch in enumerate(self.data):
            done = self.engine.step(batch, grow=each_step or index == 0)
            self.step += 1
            sums.extend(done.terms)
            if done.births:
                self._record_birth(done.births)
            if per_step is not None:
                per_step.step()
        self.engine.end_epoch()
        self.epoch += 1
        if not sums:
            raise ValueError("the loader gave no batches")
        # One host read for all the terms of the epoch.
        terms = torch.stack(sums).view(-1, 3).double().mean(0).tolist()
        self.engine.check(terms)
        row: Row = {
            "epoch": self.epoch,
            "step": self.step,
            "seconds": 0.0,
            "elbo": terms[0] - terms[1] - terms[2],
            "expected_log_lik": terms[0],
            "depth_kl": terms[1],
            "weight_kl": terms[2],
            "depth_mean": model.depth.mean(),
            "max_depth": model.depth.max_depth(),
            "num_layers": model.network.num_layers,
            "lr": float(optimizer.param_groups[0]["lr"]),
        }
        if self.sets:
            row |= self.scorer(model, self.autocast)
        self.seconds += time.perf_counter() - start
        row["seconds"] = self.seconds
        return row

    def _after_epoch(self, row: Row) -> str:
        """History, best epoch, schedule; why to stop, or an empty string."""
        self.history.rows.append(row)
        if "val" in self.sets:
            key = self._key(row)
            if self.best is None or key > self.best.key:
                self.bad_epochs = 0
                state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                self.set_best(self.epoch, key, self.model.network.num_layers, state)
            else:
                self.bad_epochs += 1
        if isinstance(self.scheduler, ReduceLROnPlateau):
            name = f"val_{self.model.likelihood.score_name}"
            self.scheduler.step(row.get(name, -row["elbo"]))
        elif self.scheduler is not None and self.schedule_every == "epoch":
            self.scheduler.step()
        if self.patience is not None and self.bad_epochs >= self.patience:
            return "patience"
        return ""

    def _key(self, row: Row) -> tuple[float, float]:
        """The validation scores, so that larger is better."""
        likelihood = self.model.likelihood
        log_score = row["val_log_score"]
        if self.select == "log_score":
            return log_score, log_score
        value = row[f"val_{likelihood.score_name}"]
        return (value if likelihood.higher_is_better else -value), log_score

    def _score_of(self, best: Best) -> float:
        better = self.select == "log_score" or self.model.likelihood.higher_is_better
        return best.key[0] if better else -best.key[0]

    def _record_birth(self, depths: range) -> None:
        for depth in depths:
            self.history.births.append({"step": self.step, "epoch": self.epoch + 1, "depth": depth})
        for callback in self.callbacks:
            callback.on_birth(self, depths)

    def _restore_best(self) -> None:
        if self.best is None:
            return
        growth.resize(self.model, self.best.num_layers, self.optimizer)
        self.model.load_state_dict(self.best.state)


def _training_batches(
    model: "UDN", data: Any, batch_size: int, generator: torch.Generator, num_data: int | None
) -> Batches:
    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    found = batches(
        data,
        model,
        what="training",
        batch_size=int(batch_size),
        generator=generator,
        num_data=num_data,
    )
    if found.num_data < 2:
        raise ValueError("training data: there is one row, at least two are needed")
    if isinstance(found, ArrayBatches | ImageBatches):
        if batch_size > found.num_data:
            raise ValueError(
                f"batch_size is {batch_size}, there are only {found.num_data} rows: "
                "it must not be larger than the data"
            )
        model.likelihood.check_training_targets(found.y)
    return found


def _check_model(model: "UDN", sets: Mapping[str, Batches]) -> None:
    """Run a few rows of each set through the layers: shapes fail here, not in mid-training."""
    with evaluating(model), torch.no_grad():
        for data in sets.values():
            if isinstance(data, ArrayBatches | ImageBatches):
                x, y, _ = data.head(2)
                model.likelihood.check_outputs(model(x), y)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


__all__ = ["FitResult", "NonFiniteError", "Trainer", "fit"]
