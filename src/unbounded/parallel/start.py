"""Who is there: one process, or those that torchrun (or Slurm, or a user) has started."""

import atexit
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from unbounded.parallel.processes import ALONE, ProcessError, Processes, Several, unreachable

TIMEOUT = "UNBOUNDED_TIMEOUT"
"""The environment variable that says for how many seconds a process waits for its peers."""

_SECONDS = 600.0
_LOOK_AGAIN = 0.02  # seconds
# At the end gloo's threads may still have to let go of a last tensor. They need the interpreter for
# that, and abort the process if it is gone.
_LET_GO = 0.1
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_by_itself = 0
_known: Several | None = None


@contextmanager
def alone() -> Iterator[None]:
    """In this block each process trains by itself, whoever has started it."""
    global _by_itself
    _by_itself += 1
    try:
        yield
    finally:
        _by_itself -= 1


def rank() -> int:
    """The number of this process among those that were started together; 0 if it is alone."""
    if _by_itself or not dist.is_available():
        return 0
    if dist.is_initialized():
        return dist.get_rank()
    return _number("RANK", 0) if _started() > 1 else 0


def current() -> Processes:
    """The processes of this run. The first call waits for all of them.

    A process group that there is already is used. Else one is made if torchrun or the variables
    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say that there are several processes: with NCCL
    for GPUs if each process of this machine has its own, with gloo otherwise.

    Raises:
        ProcessError: if they do not all come in time (`UNBOUNDED_TIMEOUT`, 600 seconds).
    """
    global _known
    if _by_itself or not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        _known = None
        if _started() < 2:
            return ALONE
        _join()
    if dist.get_world_size() == 1:
        return ALONE
    if _known is None:
        _known = Several(_number("LOCAL_WORLD_SIZE", 1))
    return _known


def started() -> int:
    """How many processes were started together."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return _started()


def choose_gpu() -> None:
    """Before anything is on a GPU: "cuda" means another one to each process of this machine."""
    if _started() > 1 and torch.cuda.is_available() and not torch.cuda.is_initialized():
        torch.cuda.set_device(_number("LOCAL_RANK", 0) % torch.cuda.device_count())


def _started() -> int:
    """How many processes the environment speaks of."""
    if not all(os.environ.get(name) for name in _NEEDED):
        return 1
    return _number("WORLD_SIZE", 1)


def _join() -> None:
    own_gpus = torch.cuda.is_available() and (
        _number("LOCAL_WORLD_SIZE", 1) <= torch.cuda.device_count()
    )
    backend = "cpu:gloo,cuda:nccl" if own_gpus else "gloo"
    limit = timedelta(seconds=timeout())
    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=limit)))
        store = dist.PrefixStore(meet(store, rank, size, limit.total_seconds()), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise unreachable(_number("RANK", 0), _started(), error) from error
    atexit.register(time.sleep, _LET_GO)


def meet(store: Any, rank: int, size: int, seconds: float) -> str:
    """A word that only the processes that are here now have in common.

    After a restart torchrun may offer the same store again, with the addresses of processes that
    are dead. So the first one asks by a new word, the others answer by words of their own, and
    only who finds its own among the answers knows that the question was meant for it.

    Args:
        store: of torch, which all processes reach.
        rank: of this one.
        size: how many there are.
        seconds: how long to wait for the others.
    """
    mine, deadline = secrets.token_hex(8), time.monotonic() + seconds
    if rank == 0:
        store.set("unbounded/asked", mine)
        keys = [f"unbounded/{mine}/{other}" for other in range(1, size)]
        try:
            store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            missing = [rank for rank, key in enumerate(keys, 1) if not store.check([key])]
            who = "process" if len(missing) == 1 else "processes"
            which = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise RuntimeError(f"{who} {which} did not come within {seconds:g} seconds") from None
        store.set(f"unbounded/{mine}", " ".join(store.get(key).decode() for key in keys))
        return mine
    while time.monotonic() < deadline:
        if store.check(["unbounded/asked"]):
            asked = store.get("unbounded/asked").decode()
            store.set(f"unbounded/{asked}/{rank}", mine)
            answers = f"unbounded/{asked}"
            if store.check([answers]) and mine in store.get(answers).decode().split():
                return asked
        time.sleep(_LOOK_AGAIN)
    raise RuntimeError(f"process 0 did not answer within {seconds:g} seconds")


def timeout() -> float:
    """For how many seconds a process waits for its peers."""
    given = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(given) if given else _SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise ProcessError(f"{TIMEOUT} must be a number of seconds, got {given!r}")
    return seconds


def _number(name: str, otherwise: int) -> int:
    given = os.environ.get(name)
    if not given:
        return otherwise
    try:
        return int(given)
    except ValueError:
        raise ProcessError(f"{name} must be a whole number, got {given!r}") from None
