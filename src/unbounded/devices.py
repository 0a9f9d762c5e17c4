"""Where to compute, as a user names it, and how much room there is."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_device(name: Any, error: type[Exception] = ValueError) -> Any:
    """The name of a device, tried out; "auto" stays "auto".

    Raises:
        error: if it cannot be used.
    """
    try:
        # There and back: a device without memory, "meta", gives nothing back.
        torch.zeros(1, device=torch.device("cpu" if name == "auto" else name)).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as reason:
        said = str(reason).splitlines()[0]
        if "device string" in said:  # torch lists two dozen kinds
            said = 'there is "cpu", "cuda", "cuda:1" and so on, or "auto"'
        raise error(f"the device {name!r} cannot be used: {said}") from None
    return name


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU; a ValueError if it cannot be used."""
    check_device(device)
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small layers have no work for a second thread, and waiting for one can cost much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: torch.device) -> int | None:
    """How many bytes can still be taken on a device; None where nobody can tell.

    On a GPU what is free there and what torch holds unused. On the CPU of a Linux system what the
    kernel calls available, or less where a control group or a limit of the process says so.
    """
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    return min(_bounds(), default=None)


def _bounds() -> Iterator[int]:
    """What each authority leaves us."""
    available = _field(_PROC / "meminfo", "MemAvailable:")
    if available is not None:
        yield 1024 * available
    for folder, most, used, cache in _groups():
        limit, usage = _number(folder / most), _number(folder / used)
        if limit is not None and usage is not None:
            # The cache of files is given up when memory is short.
            yield max(0, limit - usage + (_field(folder / "memory.stat", cache) or 0))
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    size = _field(_PROC / "self" / "status", "VmSize:")
    if limit != resource.RLIM_INFINITY and size is not None:
        yield max(0, limit - 1024 * size)


def _groups() -> Iterator[tuple[Path, str, str, str]]:
    """The control groups that bound this process, of version 1 and 2, with the files to read."""
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    second = ("memory.max", "memory.current", "inactive_file")
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, names = (_CGROUPS / "memory", first) if controllers else (_CGROUPS, second)
            # A group's limit bounds all groups below it.
            folder = root / path.lstrip("/")
            for place in (folder, *folder.parents):
                yield (place, *names)
                if place == root:
                    break


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number, nor a bound
        return int(path.read_text())
    return None


def _field(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            words = line.split()
            if words and words[0] == name:
                return int(words[1])
    return None
