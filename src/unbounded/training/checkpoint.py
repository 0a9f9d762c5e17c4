"""Checkpoints: one file, written atomically, from which training goes on bit for bit."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unbounded import growth
from unbounded.files import FileError, read_tensors, write_tensors

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.training.loop import Trainer

FORMAT = "unbounded-checkpoint-1"


def save(trainer: "Trainer", path: str | Path) -> None:
    """Everything that the next epoch depends on, into one file, by way of a temporary one."""
    model, optimizer = trainer.model, trainer.optimizer
    tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in model.state_dict().items()}
    names = {id(p): name for name, p in model.named_parameters()}
    plain_state: dict[str, dict[str, Any]] = {}
    for parameter, state in optimizer.state.items():
        name = names[id(parameter)]
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}.{key}"] = value
            else:
                plain_state.setdefault(name, {})[key] = value
    best = trainer.best
    if best is not None:
        tensors.update({f"best.{k}": v for k, v in best.state.items()})
    if trainer.depth_rule is not None:
        tensors.update({f"rule.{k}": v for k, v in trainer.depth_rule.state().items()})
    for index, sent in enumerate(trainer.lambdas or ()):
        tensors[f"lambda.{index}"] = sent
    tensors["random.torch"] = torch.get_rng_state()
    if trainer.generator is not None:
        tensors["random.shuffle"] = trainer.generator.get_state()
    if model.anchor.is_cuda:
        tensors["random.cuda"] = torch.cuda.get_rng_state(model.anchor.device)
    header = {
        "format": FORMAT,
        "num_layers": model.network.num_layers,
        "epoch": trainer.epoch,
        "step": trainer.step,
        "seconds": trainer.seconds,
        "capture_seconds": trainer.engine.capture_seconds,
        "bad_epochs": trainer.bad_epochs,
        "rows": trainer.history.rows,
        "births": trainer.history.births,
        "best": None
        if best is None
        else {"epoch": best.epoch, "key": list(best.key), "num_layers": best.num_layers},
        "optimizer": type(optimizer).__name__,
        "groups": [_plain_group(group) for group in optimizer.param_groups],
        "optimizer_state": plain_state,
        "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
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
    """Put the trainer where `save` found it: layers, weights, λ, optimiser, random states."""
    tensors, metadata = read_tensors(path)
    try:
        header = json.loads(metadata["unbounded"])
        if header["format"] != FORMAT:
            raise KeyError(header["format"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is not a checkpoint of this library ({error})") from None
    model, optimizer = trainer.model, trainer.optimizer
    if header["optimizer"] != type(optimizer).__name__:
        raise ValueError(
            f"{path} was written with {header['optimizer']}, "
            f"training now uses {type(optimizer).__name__}"
        )
    _check_count(path, header["num_layers"], tensors)
    growth.resize(model, header["num_layers"], optimizer)
    _load_model(path, model, _under(tensors, "model."))
    _load_optimizer(path, optimizer, model, header, _under(tensors, "optimizer."))
    if trainer.scheduler is not None and header["scheduler"] is not None:
        trainer.scheduler.load_state_dict(header["scheduler"])
    if trainer.scaler is not None and header["scaler"] is not None:
        trainer.scaler.load_state_dict(header["scaler"])
    trainer.epoch, trainer.step = header["epoch"], header["step"]
    trainer.seconds, trainer.bad_epochs = header["seconds"], header["bad_epochs"]
    trainer.engine.capture_seconds = header.get("capture_seconds", 0.0)
    if trainer.depth_rule is not None:
        trainer.depth_rule.load_state(model, _under(tensors, "rule."))
    sent = _under(tensors, "lambda.")
    trainer.lambdas = [sent[str(index)] for index in range(len(sent))] or None
    trainer.history.rows[:] = header["rows"]
    trainer.history.births[:] = header["births"]
    if header["best"] is not None:
        _check_count(path, header["best"]["num_layers"], tensors)
        trainer.set_best(
            header["best"]["epoch"],
            tuple(header["best"]["key"]),
            header["best"]["num_layers"],
            _under(tensors, "best."),
        )
    version, internal, gauss = header["random"]["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = header["random"]["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(tensors["random.torch"])
    if trainer.generator is not None and "random.shuffle" in tensors:
        trainer.generator.set_state(tensors["random.shuffle"])
    if model.anchor.is_cuda and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], model.anchor.device)


def _load_model(path: str | Path, model: "UDN", state: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} was written by another model: {error}") from None


def _load_optimizer(
    path: str | Path,
    optimizer: torch.optim.Optimizer,
    model: "UDN",
    header: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    if len(header["groups"]) != len(optimizer.param_groups):
        raise ValueError(
            f"{path} has {len(header['groups'])} parameter groups, "
            f"the optimiser {len(optimizer.param_groups)}"
        )
    for group, saved in zip(optimizer.param_groups, header["groups"], strict=True):
        for key, value in saved.items():
            # JSON has no tuples: keep the kind of container that the optimiser itself uses.
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = dict(header["optimizer_state"].get(name, {}))
        prefix = f"{name}."
        for key, value in tensors.items():
            if key.startswith(prefix) and "." not in key[len(prefix) :]:
                short = key[len(prefix) :]
                # `step` stays where the optimiser keeps it (on the CPU unless it is fused on CUDA).
                fused = any(g.get("fused") or g.get("capturable") for g in optimizer.param_groups)
                device = parameter.device if value.dim() or fused else value.device
                state[short] = value.to(device)
                if value.dim() and value.shape == parameter.shape:
                    # In the parameter's memory format too: fused optimisers go by memory.
                    like = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                    state[short] = like.copy_(value)
        if state:
            optimizer.state[parameter] = state


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return {
        key: value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
        for key, value in plain.items()
    }


def _numpy_state() -> list[Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [kind, np.asarray(keys).tolist(), *rest]


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def _check_count(path: str | Path, num_layers: Any, tensors: dict[str, Tensor]) -> None:
    """A file cannot ask for more layers than it has tensors for."""
    if not isinstance(num_layers, int) or not 0 <= num_layers <= len(tensors):
        raise FileError(f"{path} claims {num_layers!r} layers and holds {len(tensors)} tensors")
