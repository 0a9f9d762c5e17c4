"""kill -9 at random moments; what goes on from the checkpoint must end as if nothing had been."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unbounded as ub
from benchmarks.attack import pool
from unbounded.data import spiral
from unbounded.training import Augment, ImageData


def _model(seed: int) -> ub.UDN:
    return ub.UDN(ub.Dense(2, 8, 2), ub.Categorical(2), ub.TruncatedPoisson(1.5), seed=seed)


def one(folder: Path, resume: bool) -> list[Any]:
    """A model with a validation set, a schedule and averaged weights."""
    model = _model(3)
    common = {"epochs": 30, "batch_size": 32, "depth_lr_ratio": 2.0, "schedule": _factor}
    fit = _fit(model, folder, resume, average=0.9, **common)
    return [model.state_dict(), fit.history, fit.best_epoch]


def population(folder: Path, resume: bool) -> list[Any]:
    """Three models as one computation."""
    models = [_model(seed) for seed in range(3)]
    fits = _fit(models, folder, resume, epochs=20, batch_size=32, depth_lr_ratio=2.0)
    return [
        [model.state_dict(), fit.history, fit.best_epoch]
        for model, fit in zip(models, fits, strict=True)
    ]


def images(folder: Path, resume: bool) -> list[Any]:
    """A convolutional network on images that are shifted and mirrored."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (48, 8, 8, 3), generator=generator, dtype=torch.uint8)
    y = torch.arange(48) % 4
    data = ImageData(x[:32], y[:32], augment=Augment(crop=1))
    layers = ub.ResidualConv(3, 4, width=4, stages=(1, 1), init="he")
    model = ub.UDN(layers, ub.Categorical(4), ub.TruncatedPoisson(1.5), seed=1)
    fit = ub.fit(
        model,
        data,
        validation=data.like(x[32:], y[32:]),
        **_writing(folder, resume),
        epochs=12,
        batch_size=16,
    )
    return [model.state_dict(), fit.history, fit.best_epoch]


def reproduce(folder: Path, resume: bool) -> list[Any]:
    """The spiral study by its command."""
    from unbounded.cli import main

    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 1)
        os.dup2(silence.fileno(), 2)
    status = main(study_command(folder, resume))
    if status:
        raise RuntimeError(f"exit {status}")
    return study_results(folder)


def study_command(folder: Path, resume: bool) -> list[str]:
    """Arguments of a very small study."""
    size = "--omegas 4 --models udn omega2 --seeds 2 --epochs 24 --width 8 --no-references"
    command = ["reproduce", "spiral", *size.split(), "--device", "cpu"]
    return [*command, "--out", str(folder / "study"), *(["--resume"] if resume else [])]


def study_results(folder: Path) -> list[Any]:
    """What it found, without the times."""
    files = sorted((folder / "study").rglob("*.json"))
    return [_without_times(json.loads(path.read_text())) for path in files]


JOBS: list[Callable[[Path, bool], list[Any]]] = [one, population, images, reproduce]


class Killed:
    """Runs that are killed, once or several times, and resumed."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.expected: list[str] = []
        self.seconds: list[float] = []
        for job in JOBS:
            place = folder / f"whole-{job.__name__}"
            place.mkdir()
            begun = time.monotonic()
            pool.start(_work, job, place, False).join()
            self.seconds.append(time.monotonic() - begun)
            self.expected.append((place / "digest").read_text())

    def case(self, number: int) -> str:
        """One run that is killed up to three times before it may end."""
        which = number % len(JOBS)
        random = np.random.default_rng([self.seed, number])
        place = self.folder / f"killed-{number}"
        place.mkdir()
        deaths = 0
        for life in range(int(random.integers(1, 4))):
            process = pool.start(_work, JOBS[which], place, life > 0)
            process.join(float(random.uniform(0, self.seconds[which])))
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                deaths += 1
            process.join()
            if process.exitcode not in (0, -signal.SIGKILL):
                return f"{JOBS[which].__name__}: exit {process.exitcode} in life {life + 1}"
        process = pool.start(_work, JOBS[which], place, True)
        process.join()
        if process.exitcode != 0:
            return f"{JOBS[which].__name__}: exit {process.exitcode} after {deaths} kills"
        same = (place / "digest").read_text() == self.expected[which]
        return "" if same else f"{JOBS[which].__name__}: ends otherwise after {deaths} kills"


def _work(job: Callable[[Path, bool], list[Any]], folder: Path, resume: bool) -> int:
    torch.set_num_threads(1)
    found = digest(job(folder, resume))
    ub.atomic.write_text(folder / "digest", found)
    return 0


def _fit(model: Any, folder: Path, resume: bool, **options: Any) -> Any:
    data = {"validation": spiral(4.0, 64, part="validation"), **_writing(folder, resume)}
    return ub.fit(model, *spiral(4.0, 128), **data, **options)


def _writing(folder: Path, resume: bool) -> dict[str, Any]:
    path = folder / "run.checkpoint"
    return {"checkpoint": path, "checkpoint_every": 1, "resume": resume, "progress": False}


def _factor(progress: int) -> float:
    return 1 / (1 + progress / 10)


def digest(found: Any) -> str:
    """A short text that two runs share if they agree bit for bit."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(str(value.dtype).encode() + value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, ub.training.History):
            add([value.rows, value.births])
        elif isinstance(value, dict):
            for key in value:
                if key != "seconds":
                    sha.update(str(key).encode())
                    add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            sha.update(repr(value).encode())

    add(found)
    return sha.hexdigest()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if "second" not in k}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
