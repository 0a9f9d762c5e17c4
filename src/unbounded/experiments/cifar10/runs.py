"""One run: train a model, or resume its training, and record its scores."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from unbounded import metrics
from unbounded.data.images import Images
from unbounded.engines import Eager, Graphs
from unbounded.engines.averages import renew_norms
from unbounded.estimators.calibration import temper
from unbounded.experiments import records
from unbounded.experiments.cifar10.costs import cost
from unbounded.experiments.cifar10.recipe import CifarRun, Parts, Recipe
from unbounded.files import save
from unbounded.likelihoods.categorical import ClassPrediction
from unbounded.model import UDN
from unbounded.predictive import predict
from unbounded.steps.batches import batches
from unbounded.steps.scoring import SetScores
from unbounded.training import Callback, ImageData, Trainer, fit

SCORE_EVERY = 5
"""Epochs between two looks at the held-out images; nothing depends on what is seen there."""
_ROWS = 2000
_RENEWING = 100  # batches that tell normalisations of averaged weights what they need to know


def train(
    run: CifarRun,
    recipe: Recipe,
    images: tuple[Images, Images],
    *,
    device: str | torch.device,
    folder: Path,
    resume: bool,
    progress: bool | None,
    minutes: float | None = None,
    keep: Path | None = None,
) -> dict[str, Any] | None:
    """Train a model, or go on from its checkpoint; write and return its record.

    Args:
        run: which model.
        recipe: how.
        device: where.
        images: of CIFAR-10 or the like: training and test part, with all classes.
        folder: for NAME.json and, while it runs, NAME.checkpoint.
        resume: go on from the checkpoint, if it is there.
        progress: show a progress bar; by default on a terminal.
        minutes: stop within so many, with a checkpoint, but after an epoch at the least; the
            record is None then.
        keep: a folder for the trained model, NAME.udn.
    """
    started = time.perf_counter()
    device = torch.device(device)
    train, test = [part.only(*run.classes) if run.classes else part for part in images]
    parts = recipe.data(train, test, len(images[0].classes))
    data = parts.train
    model = run.build(recipe, data.x.shape[3], len(train.classes), data)
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    checkpoint = folder / f"{run.name}.checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        checkpoint.unlink(missing_ok=True)
    name = "test" if parts.is_test else "validation"
    epochs = run.epochs(recipe)
    graphs = device.type == "cuda" and model.layers.has_fixed_steps
    engine = Graphs() if graphs else Eager()
    autocast = torch.bfloat16 if device.type == "cuda" else None
    result = fit(
        model,
        data,
        validation=parts.held_out,
        **run.fitting(model, recipe, len(data)),
        engine=engine,
        autocast=autocast,
        callbacks=[*run.callbacks(recipe), _Looker(model, parts.scored, name, epochs, minutes)],
        progress=progress,
        checkpoint=checkpoint,
        resume=resume,
    )
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    if result.history[-1]["epoch"] < epochs:
        return None
    temperature = _finished(model, run, recipe, parts, autocast)
    record = {
        "run": records.plain(asdict(run)),
        "recipe": recipe.config(),
        "versions": records.versions(device),
        **_described(model, parts.scored, name, autocast),
        "temperature": temperature,
        "seconds": result.seconds,
        "wall_seconds": time.perf_counter() - started,  # of this piece, with set-up and scores
        "capture_seconds": engine.capture_seconds,
        "epoch_seconds": _median_epoch(result.history.rows),
        "curve": result.history.rows,
        "births": result.history.births,
    }
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        save(model, keep / f"{run.name}.udn")
    records.write_json(folder / f"{run.name}.json", record)
    checkpoint.unlink(missing_ok=True)
    return record


class _Looker(Callback):
    """Score held-out images every few epochs, and stop when the time is up."""

    def __init__(
        self, model: UDN, held_out: ImageData, name: str, epochs: int, minutes: float | None
    ):
        bound = batches(held_out, model, what=name, batch_size=_ROWS)
        self.name, self.scores = name, SetScores({name: bound})
        self.epochs = epochs
        self.before = time.monotonic()
        self.until = None if minutes is None else self.before + 60 * minutes

    def on_fit_start(self, trainer: Trainer) -> None:
        """The checkpoint was perhaps written before its epoch was scored; the next one begins."""
        self._look(trainer)
        self.before = time.monotonic()

    def on_epoch_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """Score, and look at the clock."""
        self._look(trainer)
        # Another epoch would last as long as this one.
        now = time.monotonic()
        if self.until is not None and 2 * now - self.before > self.until:
            trainer.stop()
        self.before = now

    def _look(self, trainer: Trainer) -> None:
        """Add the scores to the history's last row, if it is one that should have them."""
        due = trainer.epoch % SCORE_EVERY == 0 or trainer.epoch == self.epochs
        if due and trainer.epoch and f"{self.name}_accuracy" not in trainer.history.rows[-1]:
            trainer.history.rows[-1] |= self.scores(trainer.model, trainer.options.autocast)


def scores(
    model: UDN, held_out: ImageData, name: str, autocast: torch.dtype | None
) -> dict[str, Any]:
    """Accuracy, log score and calibration of the mixture, q(ℓ), accuracy of each depth alone."""
    right, probabilities = [], []
    for prediction, y in _predictions(model, held_out, name, autocast):
        probabilities.append(prediction.probs.float().cpu().numpy())
        right.append((prediction.classes_by_depth == y).float().cpu().numpy())
    probs, labels = np.concatenate(probabilities), np.asarray(held_out.y)
    chosen = np.clip(probs[np.arange(len(labels)), labels], 1e-12, None)
    return {
        f"{name}_accuracy": metrics.accuracy(labels, probs),
        f"{name}_log_score": float(np.log(chosen).mean()),
        f"{name}_ece": float(metrics.ece(labels, probs)),
        f"{name}_brier": metrics.brier(labels, probs),
        f"{name}_aurc": metrics.aurc(labels, probs),
        "posterior": model.depth_log_probs().detach().exp().tolist(),
        "accuracy_by_depth": np.concatenate(right, 1).mean(1).tolist(),
    }


def _predictions(
    model: UDN, images: ImageData, name: str, autocast: torch.dtype | None
) -> Iterator[tuple[ClassPrediction, torch.Tensor]]:
    """Predictions of images, some at a time, with their classes."""
    with torch.autocast(
        model.anchor.device.type, autocast or torch.bfloat16, enabled=autocast is not None
    ):
        for x, y, _ in batches(images, model, what=name, batch_size=_ROWS):
            prediction = predict(model, x)
            assert isinstance(prediction, ClassPrediction)
            yield prediction, y


def _described(
    model: UDN, held_out: ImageData, name: str, autocast: torch.dtype | None
) -> dict[str, Any]:
    """Scores, what predictions cost (see `cost`), and the depth, of a trained model."""
    bound = batches(held_out, model, what=name, batch_size=_ROWS)
    return {
        **scores(model, held_out, name, autocast),
        **cost(model, [batch.x for batch in bound], autocast),
        "depth_mean": model.depth.mean(),
        "max_depth": model.depth.max_depth(),
        "num_layers": model.network.num_layers,
    }


def _finished(
    model: UDN, run: CifarRun, recipe: Recipe, parts: Parts, autocast: torch.dtype | None
) -> float:
    """What comes after training: normalisations, and the temperature of the classes."""
    if recipe.average:
        # Normalisations have to know averaged weights, by augmented images as in training.
        data, generator = parts.train, torch.Generator().manual_seed(run.seed)
        bound = data.bind(model, run.batch_size(recipe, len(data)), generator)
        renew_norms(model, (batch.x for batch in itertools.islice(bound, _RENEWING)), autocast)
    if not recipe.calibrate or parts.held_out is None:
        return 1.0
    found = list(_predictions(model, parts.held_out, "held_out", autocast))
    outputs = torch.cat([prediction.outputs for prediction, _ in found], 1)
    return temper(model, replace(found[0][0], outputs=outputs), torch.cat([y for _, y in found]))


def _median_epoch(rows: list[dict[str, Any]]) -> float:
    """The median time of an epoch, scoring of held-out images not counted."""
    ends = [0.0, *(row["seconds"] for row in rows)]
    return median(after - before for before, after in itertools.pairwise(ends))
