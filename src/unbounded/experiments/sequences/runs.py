"""Training and scoring of the sequence study, one network after another."""

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded.data.sequences import Text, windows
from unbounded.engines import Eager, Engine, Graphs
from unbounded.experiments import records
from unbounded.experiments.depth.runs import probabilities, trace
from unbounded.experiments.sequences.recipe import (
    Problem,
    Run,
    Settings,
    build,
    fitting,
    task_of,
    text_parts,
)
from unbounded.model import UDN
from unbounded.predictive import predict
from unbounded.printing import show
from unbounded.steps.streams import Stream
from unbounded.training import FitResult, fit
from unbounded.training.checkpoint import seconds_so_far

Row = dict[str, Any]
_TEST_SEED = 1_000_000  # far from those of training
_TEST_ROWS = 64  # at a time


@dataclass(frozen=True)
class Place:
    """Where a run trains, its text, and where its checkpoint goes."""

    device: str
    parts: Path
    text: Text | None = None
    resume: bool = False
    autocast: torch.dtype | None = None


@dataclass(frozen=True)
class Data:
    """What a run learns from."""

    train: Any  # a Stream or (x, y)
    validation: tuple[Tensor, Tensor] | None
    test: tuple[Tensor, Tensor]
    vocabulary: int
    epochs: int
    tokens: int  # seen in training, in all


def data_of(run: Run, settings: Settings, text: Text | None, device: str = "cpu") -> Data:
    """Streams of fresh sequences, or windows of the text."""
    problem = run.problem
    if problem.task == "text":
        assert text is not None
        return _text(problem, settings, text)
    task = task_of(problem, settings, settings.rows, device)
    tokens = settings.rows * task.length
    stream, epochs = Stream.for_budget(task, settings.steps * tokens, tokens, settings.looks)
    test = task_of(problem, settings, settings.test_rows)
    x, y = test(torch.Generator().manual_seed(_TEST_SEED + run.seed))
    return Data(stream, None, (x, y), task.vocabulary, epochs, epochs * stream.steps * tokens)


def _text(problem: Problem, settings: Settings, text: Text) -> Data:
    parts = text_parts(text, problem.number, settings.text_length)
    sets = {name: windows(part, settings.text_length) for name, part in parts.items()}
    x, y = sets["train"]
    batches = -(-len(x) // min(settings.rows, len(x)))
    epochs = max(2, round(settings.text_steps / batches))
    tokens = epochs * x.numel()
    return Data((x, y), sets["validation"], sets["test"], len(text.alphabet), epochs, tokens)


def train(run: Run, settings: Settings, place: Place) -> Row:
    """Train one network and score it; goes on from its checkpoint where there is one."""
    data = data_of(run, settings, place.text, place.device)
    model = build(run, data.vocabulary, settings).to(place.device)
    checkpoint = place.parts / f"{run.name}.safetensors"
    before = seconds_so_far(checkpoint) if place.resume else 0.0
    start = time.perf_counter()
    engine: Engine = Graphs() if torch.device(place.device).type == "cuda" else Eager()
    rows = settings.rows
    if isinstance(data.train, tuple):
        rows = min(rows, len(data.train[0]))
    result = fit(
        model,
        data.train,
        validation=data.validation,
        batch_size=rows,
        engine=engine,
        autocast=place.autocast,
        checkpoint=checkpoint,
        resume=place.resume,
        progress=False,
        **fitting(run, data.epochs, settings),
    )
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    seconds = before + time.perf_counter() - start
    row = score(run, model, result, data)
    row["seconds"] = round(seconds, 2)
    checkpoint.unlink(missing_ok=True)
    shown = f"{row['bits']:.4f} bits" if "bits" in row else f"error {row['error']:.4f}"
    show(f"{run.name}: {shown}, E[ℓ] {row['depth_mean']:.2f}, {seconds:.1f} s")
    return row


@torch.no_grad()
def score(run: Run, model: UDN, result: FitResult, data: Data) -> Row:
    """The row of a run: the error or the bits a token on fresh rows, its depth, what it cost."""
    x, y = data.test
    right, nats, count = 0.0, 0.0, 0.0
    for at in range(0, len(x), _TEST_ROWS):
        mine = y[at : at + _TEST_ROWS].to(model.anchor.device)
        prediction = predict(model, x[at : at + _TEST_ROWS])
        each = prediction.token_log_probs(mine)  # type: ignore[attr-defined]
        counts = mine != -100
        right += float(((prediction.tokens == mine) & counts).sum())  # type: ignore[attr-defined]
        nats -= float(each.double().sum())
        count += float(counts.sum())
    history = result.history.rows
    row: Row = {
        **dataclasses.asdict(run.problem),
        "model": "udn" if run.depth is None else "fixed",
        "depth": run.depth,
        "seed": run.seed,
        "error": round(1 - right / count, 6),
        "nats": round(nats / count, 6),
        "depth_mean": round(model.depth.mean(), 4),
        "tokens": data.tokens,
        "num_data": int(data.train[1].numel()) if isinstance(data.train, tuple) else None,
        "best_epoch": result.best_epoch,
        "stopped": result.stopped,
    }
    if run.problem.task == "text":
        row["bits"] = round(nats / count / math.log(2), 6)
    if run.depth is None:
        probs = probabilities(model)
        row["depth_mode"] = 1 + max(range(len(probs)), key=probs.__getitem__)
        row["depth_probs"] = probs
        row["settled_epoch"] = result.history.settled_epoch
        row["depth_trace"] = trace(history)
    return row


def document(row: Row, settings: Settings, place: Place, text: str | None) -> dict[str, Any]:
    """The file of one run."""
    return {
        "study": "sequences",
        "run": row,
        "configuration": records.plain(dataclasses.asdict(settings)) | {"text": text},
        "versions": records.versions(place.device),
    }
