"""Timing on noisy machines: alternate the candidates, take the best of several rounds."""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import unbounded as ub
from unbounded import interrupts
from unbounded.engines import Engine
from unbounded.steps.options import FitOptions
from unbounded.training.fit import _task
from unbounded.training.trainer import Trainer


def best_times(candidates: Sequence[Callable[[], object]], rounds: int = 7) -> list[float]:
    """Seconds of each candidate: the fastest of `rounds`, run in turn so that noise hits all."""
    for candidate in candidates:
        candidate()  # warm-up: allocations, threads, caches
    best = [float("inf")] * len(candidates)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for index, candidate in enumerate(candidates):
                start = time.perf_counter()
                candidate()
                best[index] = min(best[index], time.perf_counter() - start)
    finally:
        gc.enable()
    return best


def trainer_of(
    models: ub.UDN | Sequence[ub.UDN],
    data: Any,
    engine: Engine,
    sets: dict[str, Any] | None = None,
    batch_size: int = 256,
    lr: float = 0.005,
    **options: Any,
) -> Trainer:
    """A run of `fit` with one model or many that is ready for its first epoch."""
    lone = isinstance(models, ub.UDN)
    members = [models] if isinstance(models, ub.UDN) else list(models)
    task = partial(
        _task,
        members,
        range(len(members)),
        data=data,
        sets=sets or {},
        batch_size=batch_size,
        lr=lr,
        seed=0,
        options=FitOptions(**options),
        lone=lone,
    )
    return Trainer(task, engine, lone=lone, patience=None, callbacks=())


def run_epoch(trainer: Trainer) -> None:
    """One epoch, with scores, history and best epoch."""
    trainer._epoch(1 << 60, interrupts.Request(), False)
