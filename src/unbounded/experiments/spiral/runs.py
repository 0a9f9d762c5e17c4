"""Training and scoring of the spiral study: networks as populations, references beside them."""

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from unbounded import parallel
from unbounded.baselines import bayes_accuracy, nearest_neighbours, rbf_svm
from unbounded.engines import Stacked
from unbounded.experiments import records
from unbounded.experiments.spiral.recipe import Group, Settings, SpiralRun, build, fitting
from unbounded.likelihoods import ClassPrediction
from unbounded.model import UDN
from unbounded.predictive import combine, predict
from unbounded.printing import show
from unbounded.training import FitResult, fit
from unbounded.training.checkpoint import seconds_so_far

PARTS = ("train", "validation", "test")
BATCH = 256
TRACE = 20  # points of each UDN's depth over training that are kept


def train(
    group: Group, settings: Settings, device: str, parts: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Train a population and score its members on their test parts.

    Several processes divide its members, and all of them end with all.
    """
    count, is_first = settings.members, parallel.rank() == 0
    if is_first:
        show(f"{group.name}: {len(group.runs) * count} networks, {settings.epochs} epochs")
    start = time.perf_counter()
    models = [build(run, settings, member) for run in group.runs for member in range(count)]
    # Networks with equal data share the tensors.
    made = {(run.omega, run.seed): [run.data(part) for part in PARTS] for run in group.runs}
    each = [made[run.omega, run.seed] for run in group.runs for _ in range(count)]
    train, validation, test = ([parts[k] for parts in each] for k in range(len(PARTS)))
    checkpoint = parts / f"{group.name}.safetensors"
    before = seconds_so_far(checkpoint) if options.resume else 0.0
    results = fit(
        models,
        train,
        validation=validation,
        epochs=settings.epochs,
        batch_size=BATCH,
        lr=[run.lr for run in group.runs for _ in range(count)],
        engine=Stacked(device=device),
        chunk=options.chunk,
        history_every=max(1, settings.epochs // TRACE),
        checkpoint=checkpoint,
        resume=options.resume,
        **fitting(group.runs[0], settings),
    )
    if any(result.stopped == "interrupted" for result in results):
        raise KeyboardInterrupt
    seconds = round(before + time.perf_counter() - start, 1)
    owns = [slice(first, first + count) for first in range(0, len(models), count)]
    rows = [
        _score(run, models[own], results[own], test[own.start])
        for run, own in zip(group.runs, owns, strict=True)
    ]
    if is_first:
        show(f"{group.name}: {seconds} s")
    return {"seconds": seconds, "runs": rows}


def _score(
    run: SpiralRun,
    models: Sequence[UDN],
    results: Sequence[FitResult],
    test: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    """The row of one run: test scores of the (averaged) predictive, and the depth."""
    x, y = test
    predictions = [predict(model, x) for model in models]
    mixture, first = combine(predictions), predictions[0]
    assert isinstance(mixture, ClassPrediction)
    assert isinstance(first, ClassPrediction)

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    row: dict[str, Any] = {
        **dataclasses.asdict(run),
        "test_accuracy": float((mixture.classes == y).double().mean()),
        "test_log_score": float(mixture.log_prob(y).double().mean()),
        "val_accuracy": round(mean([result.best_row["val_accuracy"] for result in results]), 6),
        "best_epoch": [result.best_epoch for result in results],
        "stopped": sorted({result.stopped for result in results}),
        "depth_mean": round(mean([model.depth.mean() for model in models]), 4),
        "max_depth": max(model.depth.max_depth() for model in models),
    }
    if run.model.startswith("udn"):
        by_depth = (first.classes_by_depth == y).float().mean(1)
        row["last_depth_mean"] = round(mean([r.history[-1]["depth_mean"] for r in results]), 4)
        row["depth_probs"] = [round(p, 4) for p in first.depth_log_probs.exp().tolist()]
        row["accuracy_by_depth"] = [round(a, 4) for a in by_depth.tolist()]
        row["depth_trace"] = [round(d, 2) for d in results[0].history["depth_mean"]]
    return row


def references(settings: Settings, path: Path, resume: bool) -> list[dict[str, Any]]:
    """Nearest neighbours, SVM and the limit on the same data, on all cores.

    Each data set's rows are written as soon as they are there: all of them take minutes.
    """
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    rows: list[dict[str, Any]] = []
    if resume and path.exists():
        rows = records.read_json(path)["references"]
    done = {(row["omega"], row["seed"]) for row in rows}
    runs = [
        SpiralRun("", "", 0.0, omega, seed)
        for omega in settings.omegas
        for seed in range(settings.seeds)
        if (omega, seed) not in done
    ]
    if runs:
        show("references: nearest neighbours, RBF-SVM, the limit")
    each = Parallel(n_jobs=-1, prefer="threads", return_as="generator")(
        delayed(_reference_rows)(run) for run in runs
    )
    for pair in each:
        rows += pair
        records.write_json(path, {"references": rows})
    limits = [
        {"model": "bayes", "omega": omega, "seed": None, "test_accuracy": bayes_accuracy(omega)}
        for omega in settings.omegas
    ]
    return rows + limits


def _reference_rows(run: SpiralRun) -> list[dict[str, Any]]:
    train, validation, test = (run.data(part) for part in PARTS)
    where = {"omega": run.omega, "seed": run.seed}
    near, svm = nearest_neighbours(train, validation, test), rbf_svm(train, validation, test)
    return [{"model": "nearest-neighbours", **where, **near}, {"model": "rbf-svm", **where, **svm}]
