"""Checkpoints: one file, written atomically, from which training goes on bit for bit."""

import json
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unbounded.engines.optimizer_states import check_number
from unbounded.engines.states import check_generator
from unbounded.files import parse_header, read_header, read_tensors, under, write_tensors
from unbounded.parallel.shards import is_sharded
from unbounded.schema import (
    FileError,
    anything,
    choice,
    list_of,
    mapping,
    optional,
    real,
    record,
    text,
    whole,
    wrong,
)
from unbounded.training import shard_files
from unbounded.training.best import BestEpoch
from unbounded.training.fingerprint import check_same

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer

FORMAT = "unbounded-checkpoint-3"
_RANDOM = re.compile(r"random\.(torch|cuda)(\.[1-9][0-9]{0,6})?")
_EARLIER = ("unbounded-checkpoint-1", "unbounded-checkpoint-2")
# Whose change makes scores of epochs before and after it two different things.
_JUDGES = frozenset({"validation", "select", "likelihood"})


def save(trainer: "Trainer", path: str | Path) -> None:
    """Everything that the next epoch depends on, into one file, by way of a temporary one.

    Of several processes all call this and the first writes, with the random states of all. What
    is in shards goes before, each process's own part into a folder that the file then names.
    """
    from unbounded import __version__

    states = {"torch": torch.get_rng_state()}
    if trainer.model.anchor.is_cuda:
        states["cuda"] = torch.cuda.get_rng_state(trainer.model.anchor.device)
    random_states = trainer.processes.gather(states)
    in_shards = any(not model.network.placement.is_whole for model in trainer.models)
    if not trainer.processes.is_first and not in_shards:
        return
    plain, tensors = trainer.engine.state()
    tensors = {f"engine.{name}": tensor for name, tensor in tensors.items()}
    spread = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in spread}
    for rank, found in enumerate(random_states):
        tensors |= {_random_name(kind, rank): state for kind, state in found.items()}
    header = {
        "format": FORMAT,
        "versions": {"unbounded": __version__, "torch": torch.__version__},
        "fingerprint": trainer.fingerprint,
        "epoch": trainer.epoch,
        "seconds": trainer.seconds,
        "members": [_describe(member) for member in trainer.members],
        "state": plain,
        "random": {"python": random.getstate(), "numpy": _numpy_state()},
    }
    try:
        json.dumps(header)
    except TypeError as error:
        raise ValueError(
            f"the state of the optimiser or scheduler is not plain data: {error}"
        ) from error
    folder = None
    if in_shards:
        described = shard_files.write(path, spread, trainer.processes)
        header["shards"], folder = described, described["folder"]
    if trainer.processes.is_first:
        write_tensors(path, tensors, {"unbounded": json.dumps(header)})
        shard_files.sweep(path, folder)


def load(trainer: "Trainer", path: str | Path, despite: frozenset[str] = frozenset()) -> None:
    """Put the trainer where `save` found it.

    Everything is checked before the models, the optimisers or a random state are touched.

    Args:
        trainer: of the call, as it is before its first epoch.
        path: the file.
        despite: what may differ from the run that wrote it; see `fit`.

    Raises:
        FileError: if the file is damaged, or of another run; the line begins with the path.
    """
    tensors, metadata = read_tensors(path)
    header = _header(path, _of_today(path, lambda: parse_header(path, metadata, FORMAT)))
    try:
        if "shards" in header:
            placement = trainer.model.network.placement
            tensors |= shard_files.read(path, header["shards"], placement, trainer.processes)
        changed = check_same(header["fingerprint"], trainer.fingerprint, despite)
        _check_members(trainer, header)
        _check_random(trainer, tensors)
        _warn_of_versions(path, header["versions"])  # who makes warnings errors stops it here
        arguments = (changed,) if changed else ()  # engines of others may not know of it
        trainer.engine.load_state(header["state"], under(tensors, "engine."), *arguments)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    trainer.epoch, trainer.seconds = header["epoch"], header["seconds"]
    for member, described in zip(trainer.members, header["members"], strict=True):
        _restore(member, described)
    version, internal, gauss = header["random"]["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = header["random"]["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(_random_state(trainer, tensors, "torch"))
    if trainer.model.anchor.is_cuda and "random.cuda" in tensors:
        state = _random_state(trainer, tensors, "cuda")
        torch.cuda.set_rng_state(state, trainer.model.anchor.device)
    _begin_again(trainer, changed)


def seconds_so_far(path: str | Path) -> float:
    """How long the training had taken when this checkpoint was written; 0 if there is none.

    Of a run in chunks, the sum over its files.
    """
    path = Path(path)
    pattern = f"{path.stem}-*of*{path.suffix}"
    files = [path] if path.exists() else sorted(path.parent.glob(pattern))
    return float(sum(_seconds(file) for file in files))


def _seconds(path: Path) -> float:
    header = _of_today(path, lambda: read_header(path, FORMAT))
    try:
        seconds: float = real(0)(header.get("seconds"), "seconds")
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    return seconds


def _begin_again(trainer: "Trainer", changed: frozenset[str]) -> None:
    """Where scores mean something else now, the best epoch is sought among those to come."""
    running = [n for n, m in enumerate(trainer.members) if m.stopped in ("", "patience")]
    if "patience" in changed or changed & _JUDGES:
        for number in running:
            member = trainer.members[number]
            waits = trainer.patience is None or member.bad_epochs < trainer.patience
            if member.stopped and (waits or changed & _JUDGES):
                member.stopped = ""
                trainer.engine.go_on(number)
    if changed & _JUDGES:
        for number in running:
            trainer.members[number].best, trainer.members[number].bad_epochs = None, 0
        if trainer.task.validates:
            trainer.engine.keep_best(running)  # should no epoch follow


def _warn_of_versions(path: str | Path, versions: dict[str, str]) -> None:
    if versions["torch"] != torch.__version__:
        warnings.warn(
            f"{path} was written with torch {versions['torch']}, this is {torch.__version__}: "
            "training goes on, but not bit for bit",
            stacklevel=5,
        )


# What a header holds ---------------------------------------------------------------------------


def _of_today(path: str | Path, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is read, or a FileError that says so if an earlier version wrote it."""
    try:
        return read()
    except FileError as error:
        old = [name for name in _EARLIER if f"'{name}'" in str(error)]
        if not old:
            raise
        raise FileError(
            f"{path} was written by an earlier version of unbounded ({old[0]}) and cannot be "
            f"resumed by this one ({FORMAT}): finish it with that version, or begin anew"
        ) from None


_COUNT = whole(0, 2**53)
_KEYS = whole(0, 2**32 - 1)
_KEY = list_of(check_number, least=2, most=2)
_BEST = record({"epoch": _COUNT, "key": _KEY, "row": mapping(anything), "highest": _KEY})
_MEMBER = record(
    {
        "rows": list_of(mapping(anything)),
        "births": list_of(record({"step": _COUNT, "epoch": _COUNT, "depth": whole(1, 2**53)})),
        "best": optional(_BEST),
        "bad_epochs": _COUNT,
        "epochs": _COUNT,
        "row": mapping(anything),
        "stopped": choice("", "patience", "diverged", "memory"),
    }
)


def _python_state(value: Any, where: str) -> list[Any]:
    version, internal, gauss = list_of(anything, least=3, most=3)(value, where)
    choice(3)(version, f"{where}[0]")
    list_of(_KEYS, least=625, most=625)(internal, f"{where}[1]")
    whole(0, 624)(internal[-1], f"{where}[1][624]")
    optional(real())(gauss, f"{where}[2]")
    return [version, internal, gauss]


def _numpy(value: Any, where: str) -> list[Any]:
    kind, keys, position, has_gauss, gauss = list_of(anything, least=5, most=5)(value, where)
    choice("MT19937")(kind, f"{where}[0]")
    list_of(_KEYS, least=624, most=624)(keys, f"{where}[1]")
    whole(0, 624)(position, f"{where}[2]")
    whole(0, 1)(has_gauss, f"{where}[3]")
    real()(gauss, f"{where}[4]")
    return [kind, keys, position, has_gauss, gauss]


_HEADER = record(
    {
        "format": choice(FORMAT),
        "versions": record({"unbounded": text(100), "torch": text(100)}),
        "fingerprint": mapping(anything),
        "epoch": _COUNT,
        "seconds": real(0),
        "members": list_of(_MEMBER),
        "state": mapping(anything),
        "random": record({"python": _python_state, "numpy": _numpy}),
    },
    {"shards": shard_files.DESCRIBED},
)


def _header(path: str | Path, header: dict[str, Any]) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = _HEADER(header, "")
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    return checked


def _check_members(trainer: "Trainer", header: dict[str, Any]) -> None:
    """Histories that the rest of the run, and who reads its result, can rely on."""
    if len(header["members"]) != len(trainer.members):
        raise wrong("members", f"a list of {len(trainer.members)}", header["members"])
    done = header["epoch"]
    if done > 1 + max(own["epochs"] for own in header["members"]):
        raise wrong("epoch", "as many as a model has trained for", done)
    kinds = (trainer.model.likelihood.score_name, "log_score")
    columns = ["lr", *(f"{name}_{kind}" for name in trainer.task.sets for kind in kinds)]
    for number, own in enumerate(header["members"]):
        where = f"members[{number}]"
        if own["epochs"] > done or (own["epochs"] < done and not own["stopped"]):
            raise wrong(f"{where}.epochs", f"the {done} of the run", own["epochs"])
        if own["row"].get("epoch", 0) != own["epochs"]:
            raise wrong(f"{where}.row.epoch", str(own["epochs"]), own["row"].get("epoch"))
        rows = [(f"{where}.rows[{n}]", row) for n, row in enumerate(own["rows"])]
        rows += [(f"{where}.row", own["row"])] if own["row"] or own["epochs"] else []
        rows += [(f"{where}.best.row", own["best"]["row"])] if own["best"] else []
        for place, row in rows:
            _check_row(place, row, done, columns)
        before = 0
        for place, row in rows[: len(own["rows"])]:
            if row["epoch"] <= before:
                raise wrong(f"{place}.epoch", f"more than {before}", row["epoch"])
            before = row["epoch"]


def _check_row(where: str, row: dict[str, Any], done: int, columns: list[str]) -> None:
    for name in ("epoch", "step", "max_depth", "num_layers"):
        whole(0, done if name == "epoch" else 2**53)(row.get(name), f"{where}.{name}")
    for name in ("seconds", "elbo", "expected_log_lik", "depth_kl", "weight_kl", "depth_mean"):
        check_number(row.get(name), f"{where}.{name}")
    for name in columns:  # other columns are those of callbacks, who may write anything
        if name in row:
            check_number(row[name], f"{where}.{name}")


def _check_random(trainer: "Trainer", tensors: dict[str, Tensor]) -> None:
    for name in tensors:
        if not _RANDOM.fullmatch(name) and not name.startswith("engine."):
            raise FileError(f"the tensor {name} is not known to this version")
    check_generator("random.torch", tensors.get("random.torch"), torch.default_generator)
    device = trainer.model.anchor.device
    for name in filter(_RANDOM.fullmatch, tensors):
        if name.startswith("random.torch"):
            check_generator(name, tensors[name], torch.default_generator)
        elif device.type == "cuda":
            check_generator(name, tensors[name], torch.Generator(device))


def _random_name(kind: str, rank: int) -> str:
    """The name of a process's random state; that of the first is as if it were alone."""
    return f"random.{kind}.{rank}" if rank else f"random.{kind}"


def _random_state(trainer: "Trainer", tensors: dict[str, Tensor], kind: str) -> Tensor:
    """This process's own, or the first one's where there were fewer processes."""
    own = _random_name(kind, trainer.processes.rank)
    return tensors.get(own, tensors[f"random.{kind}"])


def _describe(member: Any) -> dict[str, Any]:
    best = member.best
    return {
        "rows": member.history.rows,
        "births": member.history.births,
        "best": None
        if best is None
        else {
            "epoch": best.epoch,
            "key": list(best.key),
            "row": best.row,
            "highest": list(best.highest),
        },
        "bad_epochs": member.bad_epochs,
        "epochs": member.epochs,
        "row": member.row,
        "stopped": member.stopped,
    }


def _restore(member: Any, described: dict[str, Any]) -> None:
    member.history.rows[:] = described["rows"]
    member.history.births[:] = described["births"]
    member.bad_epochs, member.epochs = described["bad_epochs"], described["epochs"]
    member.row, member.stopped = described["row"], described["stopped"]
    best = described["best"]
    if best is not None:
        member.best = BestEpoch(
            best["epoch"], tuple(best["key"]), best["row"], tuple(best["highest"])
        )


def _numpy_state() -> list[Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [kind, np.asarray(keys).tolist(), *rest]
