"""`fit`: the one way to train, for one model and for many."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from torch.utils.data import DataLoader

from unbounded import atomic, parallel
from unbounded.engines import Eager, Engine, Graphs, Stacked
from unbounded.engines.base import Birth, TrainingTask, refuse
from unbounded.engines.stacked.alike import not_taken
from unbounded.model import UDN
from unbounded.parallel import ALONE, Processes
from unbounded.steps.disk import DiskData
from unbounded.steps.images import ImageData
from unbounded.steps.options import FitOptions
from unbounded.steps.step import uncompiled
from unbounded.steps.streams import Stream
from unbounded.training.callbacks import Callback
from unbounded.training.fingerprint import check_words, describe
from unbounded.training.history import History
from unbounded.training.shared import check_parts, deal, shares_models, train_apart
from unbounded.training.trainer import FitResult, Trainer

T = TypeVar("T")

_FEW_MODELS = 4  # up to so many train in turn where layers have no way of their own to be stacked


@overload
def fit(model: UDN, x: Any, y: Any = None, **arguments: Any) -> FitResult: ...
@overload
def fit(model: Sequence[UDN], x: Any, y: Any = None, **arguments: Any) -> list[FitResult]: ...
def fit(
    model: UDN | Sequence[UDN],
    x: Any,
    y: Any = None,
    *,
    validation: Any = None,
    weights: Any = None,
    monitor: Mapping[str, Any] | None = None,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float | Sequence[float] = 0.005,
    patience: int | None = None,
    engine: Engine | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    resume_despite: str | Sequence[str] = (),
    seed: int | Sequence[int] | None = None,
    **options: Any,
) -> FitResult | list[FitResult]:
    """Train a model, or many of one architecture, by dynamic variational inference (Algorithm 1).

    Main args:
        model: trained in place, on its device; or a list of models, each as if it were alone.
            Under torchrun the processes share the rows of each batch, or models: docs/scaling.md.
        x: inputs `(rows, …)` as a tensor, array, frame or parts of these; or (x, y), `ImageData`,
            `DiskData`, a `Stream`, or a DataLoader of (x, y) pairs; a list for several models.
        y: targets `(rows, …)`; only with inputs alone.
        validation: as `x` with `y`. With it the best epoch is restored at the end (`select`).
        weights: how often each training row counts, `(rows,)`.
        monitor: further sets to score every epoch, such as {"test": (x, y)}.
        epochs: passes over the data, in all (a resumed run counts its earlier ones).
        batch_size: rows a step.
        lr: learning rate of the weights; a list has one for each model.
        patience: stop after this many epochs without a better validation score.

    Other args:
        engine: of `unbounded.engines`: `Stacked()` (many models as one computation; the default
            where that is faster), `Graphs()` (CUDA graphs; `ImageData` on a GPU), else `Eager()`.
        callbacks: objects with the hooks of `Callback`.
        progress: show a bar; by default if standard error is a terminal.
        checkpoint: a file to write after epochs, from which `resume` goes on if it exists: bit
            for bit, on a CPU. Other data, options or models are an error that names them.
        resume_despite: what may differ all the same, as ["lr", "data"]; see docs/checkpoints.md.
        seed: of the shuffling; the model's seed by default. A list has one for each model.
        options: the fields of `FitOptions`: optimizer, scheduler, clip, autocast, depth_rule, ….

    Returns:
        How training ended, for each model. Ctrl-C and SIGTERM keep the best epoch and write the
        checkpoint, for which the epoch is finished; a second one ends at once.

    Raises:
        NonFiniteError: if a lone model's loss is no number (its `result` is what was reached, and
            the model has the best weights); of several, `stopped` says so.
    """
    processes = parallel.current()
    lone = not isinstance(model, list | tuple)
    models: list[UDN] = [model] if lone else list(model)  # type: ignore[list-item, arg-type]
    with processes.agreeing():
        _check_run(epochs, checkpoint, resume, processes.is_first)
        _check_models(models, options, x)
        words = check_words(resume_despite)
        task = partial(
            _task,
            models,
            data=_data(x, y, weights),
            sets=_scored_sets(validation, monitor),
            options=FitOptions.of(options),
            processes=processes,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
            lone=lone,
        )
    written = {"checkpoint": checkpoint, "resume": resume, "resume_despite": words}
    run = {"progress": progress, "epochs": int(epochs), **written}
    chosen = {"engine": engine, "patience": patience, "callbacks": list(callbacks), "lone": lone}
    results = _train(models, task, chosen, run)
    return results[0] if lone else results


def _train(
    models: Sequence[UDN],
    task: partial[TrainingTask],
    chosen: dict[str, Any],
    run: dict[str, Any],
) -> list[FitResult]:
    """In this process with its peers, or each process with models of its own."""
    if not chosen["lone"] and shares_models(models, chosen["engine"], task.keywords["processes"]):
        return _apart(models, task, chosen, run)
    return _in_chunks(models, task, chosen, run, _chunks(models, task.keywords["options"].chunk))


def _apart(
    models: Sequence[UDN],
    task: partial[TrainingTask],
    chosen: dict[str, Any],
    run: dict[str, Any],
) -> list[FitResult]:
    """The models divided among the processes."""
    processes: Processes = task.keywords["processes"]
    parts = deal(_chunks(models, task.keywords["options"].chunk), processes.size)
    path = run["checkpoint"]
    if not processes.is_first:  # one bar, of the first one's models
        run = {**run, "progress": False}
    alone = partial(task.func, *task.args, **{**task.keywords, "processes": ALONE})

    def train() -> dict[int, FitResult]:
        found: dict[int, FitResult] = {}
        if path is not None and run["resume"]:
            check_parts(Path(path), len(parts))
        for number in range(processes.rank, len(parts), processes.size):
            own = {**run, "checkpoint": _numbered(path, number, len(parts))}
            results = _in_chunks(models, alone, chosen, own, [parts[number]])
            found |= {index: results[index] for index in parts[number]}
        return found

    described = {"models": len(models), "epochs": run["epochs"], "resume": run["resume"]}
    described |= {name: describe(task.keywords[name]) for name in ("batch_size", "lr", "seed")}
    return train_apart([uncompiled(model) for model in models], processes, described, train)


def _in_chunks(
    models: Sequence[UDN],
    task: partial[TrainingTask],
    chosen: dict[str, Any],
    run: dict[str, Any],
    parts: Sequence[Sequence[int]],
) -> list[FitResult]:
    """One trainer after another, each with some of the models; the others are not touched."""
    untouched = FitResult(History(), 0, None, {}, "interrupted", 0.0, None)
    results: dict[int, FitResult] = dict.fromkeys(range(len(models)), untouched)
    processes: Processes = task.keywords["processes"]
    for number, part in enumerate(parts):
        engine = chosen["engine"] or _default_engine(models, task.keywords["data"], processes)
        with processes.agreeing():
            if processes.size > 1 and not engine.takes_processes:
                raise refuse(engine, "several processes", "use Eager(), or start one process")
            trainer = Trainer(partial(task, part), **{**chosen, "engine": engine})
        path = _numbered(run["checkpoint"], number, len(parts))
        found = trainer.run(**{**run, "checkpoint": path})
        results |= dict(zip(part, found, strict=True))
        if any(result.stopped == "interrupted" for result in found):
            break
    return [results[index] for index in range(len(models))]


def _task(
    models: Sequence[UDN],
    part: Sequence[int],
    on_birth: Callable[[int, Birth], None],
    *,
    data: Any,
    sets: dict[str, Any],
    batch_size: int,
    lr: float | Sequence[float],
    seed: int | Sequence[int] | None,
    options: FitOptions,
    lone: bool,
    processes: Processes = ALONE,
) -> TrainingTask:
    """What an engine is to do with some of the models."""

    def picked(values: Sequence[T]) -> list[T]:
        return [values[index] for index in part]

    def each(what: str, value: Any) -> list[Any]:
        if lone or not isinstance(value, list):
            return [value] * len(part)
        if len(value) != len(models):
            raise ValueError(
                f"{what}: there are {len(value)} sets for {len(models)} models; "
                "give one tuple for all, or a list with one for each"
            )
        return picked(value)

    def numbers(what: str, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | range):
            return [value] * len(part)
        if len(value) != len(models):
            raise ValueError(f"there are {len(value)} values of {what} for {len(models)} models")
        return picked(value)

    if not lone and options.depth_rule is not None:  # it keeps what it has seen of a model
        options = replace(options, depth_rule=copy.deepcopy(options.depth_rule))
    if options.depth_rule is not None:
        options.depth_rule.begin()
    rates = [float(rate) for rate in numbers("lr", lr)]
    ratios = [float(ratio) for ratio in numbers("depth_lr_ratio", options.depth_lr_ratio)]
    if not all(rate > 0 for rate in rates):
        raise ValueError(f"lr must be positive, got {min(rates)}")
    if not all(ratio >= 0 for ratio in ratios):
        raise ValueError(f"depth_lr_ratio must be at least 0, got {min(ratios)}")
    chosen = picked(models)
    seeds = [uncompiled(m).seed for m in chosen] if seed is None else numbers("seed", seed)
    return TrainingTask(
        [uncompiled(model) for model in chosen],
        chosen,
        each("training data", data),
        {name: each(_data_of(name), value) for name, value in sets.items()},
        batch_size,
        seeds,
        rates,
        ratios,
        options,
        on_birth,
        processes,
    )


def _scored_sets(validation: Any, monitor: Mapping[str, Any] | None) -> dict[str, Any]:
    if "val" in (monitor or {}):
        raise ValueError("monitor: the name 'val' is taken by the validation set")
    return ({} if validation is None else {"val": validation}) | dict(monitor or {})


def _data_of(name: str) -> str:
    return "validation data" if name == "val" else f"{name} data"


def _default_engine(models: Sequence[UDN], data: Any, processes: Processes) -> Engine:
    if processes.size > 1:
        return Eager()
    given = data if isinstance(data, list) else [data]
    in_turn = DiskData, Stream
    if len(models) > 1 and not any(isinstance(one, in_turn) for one in given):
        return Stacked() if _gain_together([uncompiled(model) for model in models]) else Eager()
    if isinstance(data, ImageData) and models:
        model = uncompiled(models[0])
        if model.anchor.is_cuda and model.layers.has_fixed_steps:
            return Graphs()
    return Eager()


def _gain_together(models: Sequence[UDN]) -> bool:
    """Whether models are faster as one computation than in turn.

    A CPU takes longer for two networks by the general way, `vmap`, than for one after the other.
    """
    if not_taken(models[0]) is not None:
        return False
    if models[0].anchor.is_cuda or len(models) > _FEW_MODELS:
        return True
    return models[0].layers.stacked([], []) is not None  # a way of their own, if all are plain


def _check_models(models: Sequence[UDN], options: Mapping[str, Any], data: Any) -> None:
    if len({id(model) for model in models}) < len(models):
        raise ValueError("a model is in the list twice: each needs to be its own")
    if len(models) > 1 and hasattr(options.get("optimizer"), "param_groups"):
        raise ValueError(
            "one optimiser cannot train several models: give its class, or a partial of it"
        )
    given = data if isinstance(data, list) else [data] * len(models)
    read = [id(one.source) for one in given if isinstance(one, Stream) and one.reads_once]
    if len(set(read)) < len(read):  # each would get some of its batches
        raise ValueError(
            "several models cannot read one iterator: give a Stream of a function or of a list, "
            "or each model a Stream of its own"
        )


def _data(x: Any, y: Any, weights: Any) -> Any:
    if y is not None and isinstance(x, Stream | DataLoader | ImageData | DiskData):
        raise ValueError(f"a {type(x).__name__} brings its own targets: leave y out")
    if weights is not None and y is None:
        raise ValueError("weights goes with x and y; a tuple (x, y, weights) holds them itself")
    return x if y is None else (x, y) if weights is None else (x, y, weights)


def _check_run(epochs: int, checkpoint: str | Path | None, resume: bool, writes: bool) -> None:
    if int(epochs) != epochs or epochs < 1:
        raise ValueError(f"epochs must be an integer of at least 1, got {epochs!r}")
    if resume and checkpoint is None:
        raise ValueError("resume needs the path of a checkpoint")
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint: the folder {Path(checkpoint).parent} does not exist")
    if checkpoint is not None and writes:
        atomic.check_target(checkpoint)


def _chunks(models: Sequence[UDN], size: int | None) -> list[list[int]]:
    """Which models train together: those of similar reach, so that none waits for deep ones."""
    if not models:
        raise ValueError("fit needs at least one model")
    order = list(range(len(models)))
    if size is None or size >= len(models):
        return [order]
    bounds = [uncompiled(model).depth.bound for model in models]
    order.sort(key=lambda index: -float("inf") if bounds[index] is None else -bounds[index])  # type: ignore[operator]
    return [order[start : start + size] for start in range(0, len(order), size)]


def _numbered(path: str | Path | None, number: int, count: int) -> Path | None:
    """The checkpoint of one chunk."""
    if path is None or count == 1:
        return None if path is None else Path(path)
    path = Path(path)
    return path.with_name(f"{path.stem}-{number + 1}of{count}{path.suffix}")
