"""Checkpoints of a population: one safetensors file, from which training goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded.engine.population import Population
from unbounded.files import FileError, read_tensors, write_tensors

FORMAT = "unbounded-population-1"


def save(population: Population, path: str | Path, seconds: float = 0.0) -> None:
    """Everything that the next epoch depends on, at the end of an epoch, written atomically."""
    tensors = _tensors(population)
    tensors |= {f"shuffles.{k}": v for k, v in population.shuffles.state().items()}
    if population.table:
        tensors["table"] = torch.stack(population.table)
    header = {
        "format": FORMAT,
        "epoch": population.epoch,
        "seconds": seconds,
        "depth": population.depth,
        "drawn": population.shuffles.drawn,
        "recorded": population.recorded,
        "members": _members(population),
    }
    write_tensors(path, tensors, {"unbounded": json.dumps(header)})


def load(population: Population, path: str | Path) -> float:
    """Put a population, built as the saved one was, where `save` found it; seconds so far.

    Raises:
        FileError: if the file is damaged or of another population.
    """
    tensors, metadata = read_tensors(path)
    header = _header(metadata, path)
    expected = _members(population)
    if header["members"] != expected:
        raise FileError(
            f"{path} was written by another population: its first member was "
            f"{header['members'][:1]} of {len(header['members'])}, here it is "
            f"{expected[:1]} of {len(expected)}"
        )
    depth = header["depth"]
    if not isinstance(depth, int) or not population.depth <= depth <= len(tensors) + 10_000:
        raise FileError(f"{path} claims {depth!r} layers, {population.depth} are there already")
    if depth > population.depth:
        population.allocate(depth)
    for name, tensor in _tensors(population).items():
        saved = tensors.get(name)
        if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
            raise FileError(
                f"{path} does not fit this population: {name} should be "
                f"{tuple(tensor.shape)}, it is {None if saved is None else tuple(saved.shape)}"
            )
        tensor.copy_(saved)
    population.shuffles.load(
        {key: tensors[f"shuffles.{key}"] for key in ("generators", "next")}, header["drawn"]
    )
    population.epoch = header["epoch"]
    population.num_alive = int(population.state["alive"].sum())
    population.recorded[:] = header["recorded"]
    population.table[:] = list(tensors["table"]) if "table" in tensors else []
    return float(header["seconds"])


def seconds(path: str | Path) -> float:
    """How long the training had taken when this file was written."""
    _, metadata = read_tensors(path)
    return float(_header(metadata, path)["seconds"])


def _header(metadata: Mapping[str, str], path: str | Path) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(metadata["unbounded"])
        if header["format"] != FORMAT:
            raise KeyError(header["format"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is not a checkpoint of a population ({error})") from None
    return header


def _tensors(population: Population) -> dict[str, Tensor]:
    found = {f"state.{name}": tensor for name, tensor in population.state.items()}
    for index, block in enumerate(population.blocks):
        found |= {f"block{index}.{name}": tensor for name, tensor in block.tensors()}
    found |= {f"buffer.{name}": t for name, t in population.network.buffers().items()}
    found |= {f"best_buffer.{name}": t for name, t in population.best_buffers.items()}
    return found


def _members(population: Population) -> list[Any]:
    """What tells this population from another: family, seed and size of each member."""
    return [
        [type(model.depth).__name__, model.seed, size, float(rate)]
        for model, size, rate in zip(
            population.models, population.data.sizes, population.rates.tolist(), strict=True
        )
    ]
