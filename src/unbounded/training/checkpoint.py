"""Checkpoints: one file, written atomically, from which training goes on bit for bit."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unbounded.files import (
    FileError,
    parse_header,
    read_header,
    read_tensors,
    under,
    write_tensors,
)

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer

FORMAT = "unbounded-checkpoint-2"


def save(trainer: "Trainer", path: str | Path) -> None:
    """Everything that the next epoch depends on, into one file, by way of a temporary one."""
    plain, tensors = trainer.engine.state()
    tensors = {f"engine.{name}": tensor for name, tensor in tensors.items()}
    tensors["random.torch"] = torch.get_rng_state()
    if trainer.model.anchor.is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state(trainer.model.anchor.device)
    header = {
        "format": FORMAT,
        "epoch": trainer.epoch,
        "seconds": trainer.seconds,
        "models": _models(trainer),
        "members": [_describe(member) for member in trainer.members],
        "engine": type(trainer.engine).__name__,
        "state": plain,
        "random": {"python": random.getstate(), "numpy": _numpy_state()},
    }
    try:
        text = json.dumps(header)
    except TypeError as error:
        raise ValueError(
            f"the state of the optimiser or scheduler is not plain data: {error}"
        ) from error
    write_tensors(path, tensors, {"unbounded": text})


def load(trainer: "Trainer", path: str | Path) -> None:
    """Put the trainer where `save` found it.

    Raises:
        FileError: if the file is damaged, or of other models or another engine.
    """
    tensors, metadata = read_tensors(path)
    header = parse_header(path, metadata, FORMAT)
    expected = _models(trainer)
    if header["models"] != expected:
        raise FileError(
            f"{path} was written by other models: its first was {header['models'][:1]} of "
            f"{len(header['models'])}, here it is {expected[:1]} of {len(expected)}"
        )
    if header["engine"] != type(trainer.engine).__name__:
        raise FileError(
            f"{path} was written by the engine {header['engine']}, "
            f"training now uses {type(trainer.engine).__name__}"
        )
    try:
        trainer.engine.load_state(header["state"], under(tensors, "engine."))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    trainer.epoch, trainer.seconds = header["epoch"], header["seconds"]
    for member, described in zip(trainer.members, header["members"], strict=True):
        _restore(member, described)
    version, internal, gauss = header["random"]["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = header["random"]["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(tensors["random.torch"])
    if trainer.model.anchor.is_cuda and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], trainer.model.anchor.device)


def seconds_so_far(path: str | Path) -> float:
    """How long the training had taken when this checkpoint was written; 0 if there is none.

    Of a run in chunks, the sum over its files.
    """
    path = Path(path)
    pattern = f"{path.stem}-*of*{path.suffix}"
    files = [path] if path.exists() else sorted(path.parent.glob(pattern))
    return sum(float(read_header(file, FORMAT)["seconds"]) for file in files)


def _models(trainer: "Trainer") -> list[Any]:
    """What tells these models from others: family and seed of each."""
    return [[type(model.depth).__name__, model.seed] for model in trainer.models]


def _describe(member: Any) -> dict[str, Any]:
    best = member.best
    return {
        "rows": member.history.rows,
        "births": member.history.births,
        "best": None
        if best is None
        else {"epoch": best.epoch, "key": list(best.key), "row": best.row},
        "bad_epochs": member.bad_epochs,
        "epochs": member.epochs,
        "row": member.row,
        "stopped": member.stopped,
    }


def _restore(member: Any, described: dict[str, Any]) -> None:
    from unbounded.training.trainer import BestEpoch

    member.history.rows[:] = described["rows"]
    member.history.births[:] = described["births"]
    member.bad_epochs, member.epochs = described["bad_epochs"], described["epochs"]
    member.row, member.stopped = described["row"], described["stopped"]
    best = described["best"]
    if best is not None:
        member.best = BestEpoch(best["epoch"], tuple(best["key"]), best["row"])


def _numpy_state() -> list[Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [kind, np.asarray(keys).tolist(), *rest]
