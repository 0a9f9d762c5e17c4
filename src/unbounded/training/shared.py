"""Many models in several processes: each trains some of them alone, and all get all of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unbounded import growth, parallel
from unbounded.engines import Engine
from unbounded.model import UDN
from unbounded.parallel import ProcessError, Processes
from unbounded.parallel.meeting import Meeting
from unbounded.training.fingerprint import differences, short
from unbounded.training.trainer import FitResult


def shares_models(models: Sequence[UDN], engine: Engine | None, processes: Processes) -> bool:
    """Whether processes divide models rather than rows: if there is one for each of them.

    An engine that takes several processes, `Eager()`, asks for rows to be divided; one that does
    not, such as `Stacked()`, for models, and some processes may then go without.
    """
    if processes.size == 1:
        return False
    return len(models) >= processes.size if engine is None else not engine.takes_processes


def deal(chunks: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Models in parts that train together, of which the process r has the parts r, r + size, …

    The chunks of one process where there are enough of them: sums of a stack are rounded by who is
    in it, so models are the same to the last bit then.
    """
    if len(chunks) >= size:
        return [list(chunk) for chunk in chunks]
    models = [index for chunk in chunks for index in chunk]
    return [models[rank::size] for rank in range(min(size, len(models)))]


def train_apart(
    models: Sequence[UDN],
    processes: Processes,
    described: dict[str, Any],
    train: Callable[[], dict[int, FitResult]],
) -> list[FitResult]:
    """Train the models of this process, then exchange weights and histories.

    Args:
        models: all of them, alike in all processes.
        processes: who divide them.
        described: what all of them should have been called with.
        train: trains the models of this process, alone; gives their results by number.

    Returns:
        The results of all models. The optimiser of a model is where it was trained.
    """
    first, *others = processes.gather(described)
    for rank, other in enumerate(others, 1):
        for name, one, two in differences("call", first, other):
            raise ProcessError(
                f"the processes are not of one run: {name.removeprefix('call.')} is {short(one)} "
                f"in process 0, {short(two)} in process {rank}"
            )
    found: dict[int, FitResult] = {}
    with processes.agreeing(), Meeting(processes), parallel.alone():
        found = train()
    own = {
        number: (
            models[number].network.num_layers,
            {name: value.cpu() for name, value in models[number].state_dict().items()},
            replace(result, optimizer=None),
        )
        for number, result in found.items()
    }
    for everyone in processes.gather(own):
        for number, (num_layers, state, result) in everyone.items():
            if number not in found:
                growth.resize(models[number], num_layers)
                models[number].load_state_dict(state)
                found[number] = result
    return [found[number] for number in range(len(models))]


def check_parts(path: Path, count: int) -> None:
    """A ValueError if the checkpoints to resume from are of models divided otherwise."""
    own = {f"{path.stem}-{place + 1}of{count}{path.suffix}" for place in range(count)}
    there = {one.name for one in path.parent.glob(f"{path.stem}-*of*{path.suffix}")}
    there |= {path.name} if path.exists() else set()
    if there and not there & own:
        raise ValueError(
            f"checkpoint: {min(there)} is of a run that divided its models otherwise: resume with "
            "as many processes as then, or give another path"
        )
