"""Whether all processes of a run do the same: at its start, and after every epoch."""

import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unbounded.parallel import ProcessError
from unbounded.parallel.shards import is_sharded
from unbounded.training.fingerprint import differences, short

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.training.trainer import Trainer

_DATA = ("data", "weights", "validation", "monitor")
_SAME = 1e-6  # relative: processors of different kinds may round differently


def check_start(
    trainer: "Trainer", epochs: int, checkpoint: str | Path | None, resume: bool
) -> None:
    """A ProcessError in all processes unless they have the same data, options and models."""
    if trainer.processes.size == 1:
        return
    trainer.processes.begin()
    from unbounded import __version__

    there = checkpoint is not None and resume and Path(checkpoint).exists()
    own = {
        "version of unbounded": __version__,
        "version of torch": torch.__version__,
        "epochs": epochs,
        "checkpoint": checkpoint is not None,
        "resume": resume,
        "a checkpoint to resume from": there,
        "shard": trainer.options.shard,
        **trainer.fingerprint,
    }
    place = platform.node(), str(trainer.model.anchor.device)
    check_places(trainer.processes.gather(place), trainer.processes.needs_own_gpus)
    first, *others = trainer.processes.gather(own)
    for rank, other in enumerate(others, 1):
        found = [d for name in first for d in differences(name, first[name], other.get(name))]
        if found:
            told = "; ".join(
                f"{name} is {short(one)} in process 0, {short(two)} in process {rank}"
                for name, one, two in found[:3]
            )
            more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
            of_data = any(name.split(".")[0] in _DATA for name, *_ in found)
            hint = (
                ". Each needs all of the data, of which it then takes its part" if of_data else ""
            )
            raise ProcessError(f"the processes are not of one run: {told}{more}{hint}")
    check_alike(trainer)


def check_places(places: list[tuple[str, str]], own_gpus: bool) -> None:
    """A ProcessError unless all processes train on devices that go together.

    Args:
        places: machine and device of each process.
        own_gpus: whether none of them may share a GPU.
    """
    for rank, (machine, device) in enumerate(places):
        if device.split(":")[0] != places[0][1].split(":")[0]:
            raise ProcessError(
                f"process 0 trains on {places[0][1]}, process {rank} on {device}: "
                "all need the same kind of device"
            )
        earlier = places.index((machine, device))
        if own_gpus and device.startswith("cuda") and earlier < rank:
            raise ProcessError(
                f"processes {earlier} and {rank} both train on {device}: give each a GPU of its "
                "own, model.to(f\"cuda:{os.environ['LOCAL_RANK']}\")"
            )


def check_alike(trainer: "Trainer", due: bool = False, asked: bool = False) -> tuple[bool, bool]:
    """A ProcessError in all processes unless their models are alike.

    Args:
        trainer: after an epoch.
        due: whether a checkpoint is due, by the clock of this process.
        asked: whether this process was asked to end.

    Returns:
        Whether a checkpoint is due, by the first one's clock; whether anyone was asked to end.
    """
    processes = trainer.processes
    if processes.size == 1:
        return due, asked
    own = [_describe(model) for model in trainer.models]
    everyone = processes.gather((trainer.epoch, own, due, asked))
    for rank, (epoch, described, *_) in enumerate(everyone):
        if epoch != everyone[0][0]:
            raise ProcessError(
                f"process 0 is after epoch {everyone[0][0]}, process {rank} after epoch {epoch}"
            )
        for one, other in zip(everyone[0][1], described, strict=True):
            if not _close(one, other):
                raise ProcessError(
                    f"the models differ after epoch {epoch}: {_words(one)} in process 0, "
                    f"{_words(other)} in process {rank}"
                )
    return everyone[0][2], any(one[3] for one in everyone)


def _describe(model: "UDN") -> dict[str, Any]:
    """How many layers there are, λ, and the norm of all weights."""
    depth = {name: value.double().tolist() for name, value in model.depth.state_dict().items()}
    own = (p for p in model.parameters() if not is_sharded(p))  # shards differ, of course
    weights = [p.detach() for p in own if p.is_floating_point()]
    norms = torch._foreach_norm(weights, dtype=torch.float64)
    norm = float(torch.stack([n.to(model.anchor.device) for n in norms]).norm()) if norms else 0.0
    return {"layers": model.network.num_layers, "depth": depth, "norm": norm}


def _close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    numbers = [(one["norm"], other["norm"])]
    for name, value in one["depth"].items():
        numbers += zip(_flat(value), _flat(other["depth"].get(name)), strict=True)
    alike = (a == b or math.isclose(a, b, rel_tol=_SAME) or a != a != b for a, b in numbers)
    return one["layers"] == other["layers"] and all(alike)


def _flat(value: Any) -> list[float]:
    return [x for one in value for x in _flat(one)] if isinstance(value, list) else [value]


def _words(described: dict[str, Any]) -> str:
    numbers = ", ".join(f"{name} = {short(value)}" for name, value in described["depth"].items())
    return f"{described['layers']} layers, {numbers}, weights of norm {described['norm']:.9g}"
