"""Training and scoring of the sequence study, one network after another."""

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded.data.sequences import Hops, RandomWindows, Text, windows
from unbounded.engines import Eager, Engine, Graphs
from unbounded.experiments import records
from unbounded.experiments.depth.runs import probabilities, trace
from unbounded.experiments.sequences.recipe import (
    OLD,
    Problem,
    Run,
    Settings,
    build,
    fitting,
    matters,
    task_of,
    text_parts,
)
from unbounded.files import save
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
    models: Path | None = None  # folder for what was trained, if it is to be kept


@dataclass(frozen=True)
class Data:
    """What a run learns from."""

    train: Stream
    validation: tuple[Tensor, Tensor] | None
    test: tuple[Tensor, Tensor]
    vocabulary: int
    epochs: int
    tokens: int  # seen in training, in all
    characters: int | None = None  # of the training text


def data_of(run: Run, settings: Settings, text: Text | None, device: str = "cpu") -> Data:
    """Streams of fresh sequences, or windows of the text."""
    problem = run.problem
    if problem.task == "text":
        assert text is not None
        return _text(problem, settings, text, device)
    rows, steps = settings.rows, settings.steps
    if problem.task == "words":
        rows, steps = settings.word_rows, settings.word_steps
    task = task_of(problem, settings, rows, device)
    tokens = rows * task.time
    stream, epochs = Stream.for_budget(task, steps * tokens, tokens, settings.looks)
    test = task_of(problem, settings, settings.test_rows)
    draw = test.hardest if isinstance(test, Hops) else test
    x, y = draw(torch.Generator().manual_seed(_TEST_SEED + run.seed))
    return Data(stream, None, (x, y), task.vocabulary, epochs, epochs * stream.steps * tokens)


def _text(problem: Problem, settings: Settings, text: Text, device: str) -> Data:
    """Windows from random places of the training text; those of the other parts stand still."""
    parts = text_parts(text, problem.number, settings.text_length, settings.text_stretches)
    validation, test = (
        windows(parts[name], settings.text_length, settings.test_rows)
        for name in ("validation", "test")
    )
    train = parts["train"]
    draw = RandomWindows(train.to(device), settings.text_length, settings.text_rows)
    looks = min(settings.looks, settings.text_steps)
    stream = Stream(draw, -(-settings.text_steps // looks), len(train))
    epochs = -(-settings.text_steps // stream.steps)
    tokens = epochs * stream.steps * settings.text_rows * settings.text_length
    return Data(stream, validation, test, len(text.alphabet), epochs, tokens, len(train))


def train(run: Run, settings: Settings, place: Place) -> Row:
    """Train one network and score it; goes on from its checkpoint where there is one."""
    data = data_of(run, settings, place.text, place.device)
    model = build(run, data.vocabulary, settings).to(place.device)
    checkpoint = place.parts / f"{run.name}.safetensors"
    before = seconds_so_far(checkpoint) if place.resume else 0.0
    start = time.perf_counter()
    engine: Engine = Graphs() if torch.device(place.device).type == "cuda" else Eager()
    with _fast_products():
        result = fit(
            model,
            data.train,
            validation=data.validation,
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
    row = score(run, model, result, data, settings)
    row["seconds"] = round(seconds, 2)
    if place.models is not None and run.depth is None:
        place.models.mkdir(parents=True, exist_ok=True)
        save(model, place.models / f"{run.name}.udn")
    checkpoint.unlink(missing_ok=True)
    shown = f"{row['bits']:.4f} bits" if "bits" in row else f"error {row['error']:.4f}"
    show(f"{run.name}: {shown}, E[ℓ] {row['depth_mean']:.2f}, {seconds:.1f} s")
    return row


@contextmanager
def _fast_products() -> Iterator[None]:
    """Products of matrices by the tensor cores of a GPU, with eleven bits (TF32); for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def score(run: Run, model: UDN, result: FitResult, data: Data, settings: Settings) -> Row:
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
        "model": run.model,
        "depth": run.depth,
        "width": settings.width if run.width is None else run.width,
        "seed": run.seed,
        "error": round(1 - right / count, 6),
        "nats": round(nats / count, 6),
        "depth_mean": round(model.depth.mean(), 4),
        "tokens": data.tokens,
        "num_data": data.characters,
        "parameters": sum(p.numel() for p in model.freeze().parameters()),
        "best_epoch": result.best_epoch,
        "stopped": result.stopped,
    }
    if run.problem.task == "text":
        row["bits"] = round(nats / count / math.log(2), 6)
        row["val_bits"] = round(result.best_row["val_bits_per_character"], 6)
    if run.depth is None:
        probs = probabilities(model)
        row["depth_mode"] = 1 + max(range(len(probs)), key=probs.__getitem__)
        row["depth_probs"] = probs
        row["settled_epoch"] = result.history.settled_epoch
        row["depth_trace"] = trace(history)
    return row


def described(settings: Settings, text: str | None, bf16: bool) -> dict[str, Any]:
    """All that the numbers depend on, as files say it.

    Args:
        settings: of the study.
        text: what tells it from others, if there is one.
        bf16: whether layers run in bfloat16.
    """
    found: dict[str, Any] = records.plain(dataclasses.asdict(settings))
    return found | {"text": text, "bf16": bf16}


def document(row: Row, described: dict[str, Any], place: Place) -> dict[str, Any]:
    """The file of one run."""
    return {
        "study": "sequences",
        "run": row,
        "configuration": described,
        "versions": records.versions(place.device),
    }


def differing(document: dict[str, Any], run: Run, described: dict[str, Any]) -> list[str]:
    """Names of the settings by which a run would now differ from that of a file."""
    before = OLD | document.get("configuration", {})
    names = matters(run.problem.task, run.model)
    return [name for name in names if before.get(name) != described[name]]
