"""`fit_population`: epochs, chunks, progress, checkpoints and Ctrl-C around a population."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unbounded.engine import checkpoint as checkpoints
from unbounded.engine.members import MemberResult
from unbounded.engine.population import Population
from unbounded.engine.posterior import reach_order

if TYPE_CHECKING:
    from unbounded.model import UDN

SECONDS_BETWEEN_CHECKPOINTS = 20.0
_BY_MEMBER = ("validation", "lr", "depth_lr_ratio", "seeds")


def fit_population(
    models: Sequence["UDN"],
    data: Any,
    *,
    epochs: int = 100,
    chunk: int | None = None,
    history_every: int = 1,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    on_epoch: Callable[[Population], None] | None = None,
    **options: Any,
) -> list[MemberResult]:
    """Train many models at once; each ends as `unbounded.fit` would have left it.

    Main args:
        models: of one architecture, trained in place. Each has its own seed, λ and weights.
        data: (x, y) or (x, y, weights) for all, or a list with one such tuple for each.
        epochs: how many passes over the data.
        options: of `Population`: validation, batch_size, lr, depth_lr_ratio, optimizer, device, …

    Other args:
        chunk: members at a time, where all at once would not fit into memory.
        history_every: epochs between rows of the history.
        progress: show a progress bar; by default if standard error is a terminal.
        checkpoint: a file to write every 20 seconds and at the end; with several chunks its
            name gets their number.
        resume: go on from the checkpoint if it exists.
        on_epoch: called after every epoch.

    Returns:
        One result for each model, in their order. After Ctrl-C, which takes effect at the end
        of an epoch, every model has its best epoch so far.
    """
    if int(epochs) != epochs or epochs < 1:
        raise ValueError(f"epochs must be an integer of at least 1, got {epochs!r}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if history_every < 1:
        raise ValueError(f"history_every must be at least 1, got {history_every}")
    if resume and checkpoint is None:
        raise ValueError("resume needs the path of a checkpoint")
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint: the folder {Path(checkpoint).parent} does not exist")
    pieces = _chunks(models, chunk)
    show = sys.stderr.isatty() if progress is None else progress
    results: list[MemberResult | None] = [None] * len(models)
    with _Progress(epochs * len(pieces), show) as bar, _deferred_interrupt() as interrupted:
        for number, members in enumerate(pieces):
            population = Population(
                [models[r] for r in members],
                _pick(data, members, len(models)),
                **_pick_options(options, members, len(models)),
            )
            stopped = _run(
                population,
                epochs,
                history_every,
                _numbered(checkpoint, number, len(pieces)),
                resume,
                on_epoch,
                bar,
                interrupted,
            )
            for index, result in zip(members, population.finish(stopped), strict=True):
                results[index] = result
    return [result for result in results if result is not None]


def _run(
    population: Population,
    epochs: int,
    history_every: int,
    checkpoint: Path | None,
    resume: bool,
    on_epoch: Callable[[Population], None] | None,
    bar: "_Progress",
    interrupted: threading.Event,
) -> str:
    seconds = 0.0
    if resume and checkpoint is not None and checkpoint.exists():
        seconds = checkpoints.load(population, checkpoint)
        bar.update(population, population.epoch)
    start = last_saved = time.monotonic()
    while population.epoch < epochs and population.num_alive and not interrupted.is_set():
        population.run_epoch()
        if population.epoch % history_every == 0 or population.epoch == epochs:
            population.record()
        now = time.monotonic()
        if checkpoint is not None and now - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
            checkpoints.save(population, checkpoint, seconds + now - start)
            last_saved = time.monotonic()
        bar.update(population, 1)
        if on_epoch is not None:
            on_epoch(population)
    if checkpoint is not None:
        checkpoints.save(population, checkpoint, seconds + time.monotonic() - start)
    done = population.epoch >= epochs or not population.num_alive
    return "epochs" if done else "interrupted"


def _chunks(models: Sequence["UDN"], chunk: int | None) -> list[list[int]]:
    """Members of similar reach together, so that shallow ones do not wait for deep ones."""
    if chunk is None or chunk >= len(models):
        return [list(range(len(models)))]
    order, _ = reach_order(models)
    return [order[start : start + chunk] for start in range(0, len(order), chunk)]


def _pick(value: Any, members: Sequence[int], count: int) -> Any:
    """The chosen members' part of what is given for each, or what is given for all."""
    if isinstance(value, list | range) and len(value) == count:
        return [value[r] for r in members]
    return value


def _pick_options(options: dict[str, Any], members: Sequence[int], count: int) -> dict[str, Any]:
    picked = dict(options)
    for name in _BY_MEMBER:
        if name in picked:
            value = picked[name]
            if isinstance(value, tuple) and name != "validation":
                value = list(value)
            picked[name] = _pick(value, members, count)
    if picked.get("monitor"):
        picked["monitor"] = {k: _pick(v, members, count) for k, v in picked["monitor"].items()}
    return picked


def _numbered(path: str | Path | None, number: int, count: int) -> Path | None:
    if path is None:
        return None
    path = Path(path)
    return path if count == 1 else path.with_name(f"{path.stem}-{number + 1}{path.suffix}")


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C asks for an end after the epoch; a second one ends at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handler(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """A bar over epochs with the mean validation score and depth, read once a second at most."""

    def __init__(self, total: int, show: bool):
        self._bar: Any = None
        self._last = 0.0
        if show:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="epoch", file=sys.stderr, dynamic_ncols=True)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *reason: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, population: Population, epochs: int) -> None:
        """Count epochs."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._last > 1:
            self._last = now
            row = torch.nanmean(population.state["row"], 0).tolist()
            means = dict(zip(population.columns, row, strict=True))
            parts = [f"elbo {means['elbo']:,.1f}", f"E[ℓ] {means['depth_mean']:.2f}"]
            name = next((c for c in population.columns if c.startswith("val_")), None)
            if name is not None:
                parts.insert(1, f"{name.replace('_', ' ')} {means[name]:.4g}")
            parts.append(f"layers {population.depth}")
            self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(epochs)
