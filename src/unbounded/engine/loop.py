"""`fit_population`: epochs, chunks, workers, progress, checkpoints and Ctrl-C."""

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
# Fewer members than this do not keep a thread busy.
_LEAST = 4


def fit_population(
    models: Sequence["UDN"],
    data: Any,
    *,
    epochs: int = 100,
    chunk: int | None = None,
    workers: int | None = None,
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
        workers: threads among which the members are divided, on a CPU. By default there is one,
            and all of torch's threads share each operation: threads of Python would wait for
            the interpreter, and for small populations that takes longer than the work. On a
            machine that is busy with other things, several workers lose less than threads that
            wait for each other after every operation; so does `torch.set_num_threads(1)`.
        history_every: epochs between rows of the history.
        progress: show a progress bar; by default if standard error is a terminal.
        checkpoint: a file to write every 20 seconds and at the end; if the members are divided
            its name gets the number of the part.
        resume: go on from the checkpoint if it exists.
        on_epoch: called with the population after every epoch, by each worker.

    Returns:
        One result for each model, in their order. After Ctrl-C, which takes effect at the end
        of an epoch, every model has its best epoch so far.
    """
    if int(epochs) != epochs or epochs < 1:
        raise ValueError(f"epochs must be an integer of at least 1, got {epochs!r}")
    for name, value in (("chunk", chunk), ("workers", workers), ("history_every", history_every)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if resume and checkpoint is None:
        raise ValueError("resume needs the path of a checkpoint")
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint: the folder {Path(checkpoint).parent} does not exist")
    threads = _threads(models, workers, options)
    before = _parts_before(checkpoint) if resume else None
    pieces = _divide(models, chunk, before or threads)
    show = sys.stderr.isatty() if progress is None else progress
    results: list[MemberResult | None] = [None] * len(models)
    with _Progress(epochs * len(pieces), show) as bar, _deferred_interrupt() as interrupted:
        loop = _Loop(epochs, history_every, resume, on_epoch, bar, interrupted)

        def train(number: int) -> None:
            members = pieces[number]
            population = Population(
                [models[r] for r in members],
                _pick(data, members, len(models)),
                **_pick_options(options, members, len(models)),
            )
            stopped = loop.run(population, _numbered(checkpoint, number, len(pieces)))
            for index, result in zip(members, population.finish(stopped), strict=True):
                results[index] = result

        _each(train, len(pieces), threads, interrupted)
    return [result for result in results if result is not None]


@dataclass
class _Loop:
    """Epochs of one population."""

    epochs: int
    history_every: int
    resume: bool
    on_epoch: Callable[[Population], None] | None
    bar: "_Progress"
    interrupted: threading.Event

    def run(self, population: Population, checkpoint: Path | None) -> str:
        """Train; returns why it ended."""
        seconds = 0.0
        if self.resume and checkpoint is not None and checkpoint.exists():
            seconds = checkpoints.load(population, checkpoint)
            self.bar.update(population, population.epoch)
        start = last_saved = time.monotonic()
        while self._goes_on(population) and not self.interrupted.is_set():
            population.run_epoch()
            if population.epoch % self.history_every == 0 or population.epoch == self.epochs:
                population.record()
            now = time.monotonic()
            if checkpoint is not None and now - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
                checkpoints.save(population, checkpoint, seconds + now - start)
                last_saved = time.monotonic()
            self.bar.update(population, 1)
            if self.on_epoch is not None:
                self.on_epoch(population)
        if checkpoint is not None:
            checkpoints.save(population, checkpoint, seconds + time.monotonic() - start)
        return "interrupted" if self._goes_on(population) else "epochs"

    def _goes_on(self, population: Population) -> bool:
        return population.epoch < self.epochs and population.num_alive > 0


def _each(function: Callable[[int], None], count: int, threads: int, stop: threading.Event) -> None:
    """Call a function with 0 … count−1, on several threads if there is more than one."""
    if threads == 1 or count == 1:
        for number in range(count):
            function(number)
        return
    before = torch.get_num_threads()

    def guarded(number: int) -> None:
        torch.set_num_threads(1)  # of this thread
        try:
            function(number)
        except BaseException:
            stop.set()  # the others need not go on
            raise

    try:
        with ThreadPoolExecutor(threads) as pool:
            for future in [pool.submit(guarded, number) for number in range(count)]:
                future.result()
    finally:
        torch.set_num_threads(before)


def _threads(models: Sequence["UDN"], workers: int | None, options: dict[str, Any]) -> int:
    """How many threads train: one beside a GPU, else as many as asked for and as have work."""
    device = options.get("device")
    device = models[0].anchor.device if device is None and models else device
    if torch.device(device or "cpu").type != "cpu":
        return 1
    return max(1, min(workers or 1, len(models) // _LEAST))


def _divide(models: Sequence["UDN"], chunk: int | None, parts: int) -> list[list[int]]:
    """Which members train together.

    Parts for threads are alike, so that all take equally long. Chunks hold members of similar
    reach, so that shallow ones do not wait for deep ones.
    """
    count = len(models)
    if chunk is None or chunk * parts >= count:
        return [list(range(part, count, parts)) for part in range(min(parts, max(count, 1)))]
    order, _ = reach_order(models)
    return [order[start : start + chunk] for start in range(0, count, chunk)]


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
    if count == 1:
        return path
    return path.with_name(f"{path.stem}-{number + 1}of{count}{path.suffix}")


def _written(path: Path) -> list[tuple[Path, int]]:
    """The files of a checkpoint, each with the number of parts that the members were divided in."""
    if path.exists():
        return [(path, 1)]
    pattern = re.compile(re.escape(path.stem) + r"-\d+of(\d+)" + re.escape(path.suffix))
    files = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return [(file, int(match[1])) for file in files if (match := pattern.fullmatch(file.name))]


def _parts_before(path: str | Path | None) -> int | None:
    """Into how many parts the members were divided when the checkpoint was written."""
    return next((parts for _, parts in _written(Path(path))), None) if path is not None else None


def seconds_so_far(checkpoint: str | Path) -> float:
    """How long the training had taken when its checkpoint was written; 0 if there is none."""
    files = _written(Path(checkpoint))
    return max((checkpoints.seconds(file) for file, _ in files), default=0.0)


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
        self._lock = threading.Lock()
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
        with self._lock:
            self._update(population, epochs)

    def _update(self, population: Population, epochs: int) -> None:
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
