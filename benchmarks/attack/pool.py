"""Many cases in a few processes; one that hangs, dies or takes too much is seen and named."""

import multiprocessing
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

HANG_SECONDS = 60.0
"""A case that takes longer by the wall clock is killed."""

# Nothing but this module's children forks, and torch runs with one thread: forking is safe, and a
# child has all imports and fixtures from its first moment.
_CONTEXT = multiprocessing.get_context("fork")


class Outcome(NamedTuple):
    """How a case ended."""

    case: int
    fault: str  # "" if all was well
    seconds: float  # of CPU time
    peak: int  # bytes of memory beyond those at its start


def run(case: Callable[[int], str], cases: Iterable[int], workers: int) -> list[Outcome]:
    """Run `case(number)` for all numbers; it returns a fault in words, or an empty text."""
    left, done = deque(cases), []
    running = [_Worker(case) for _ in range(min(workers, len(left)))]
    try:
        for worker in running:
            worker.give(left)
        while busy := [worker for worker in running if worker.case is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                found = worker.take() if worker.pipe in ready else worker.overdue()
                if found is None:
                    continue
                done.append(found)
                if found.fault.startswith(("hung", "died")):
                    worker.end()
                    running[running.index(worker)] = worker = _Worker(case)
                worker.give(left)
    finally:
        for worker in running:
            worker.end()
    return sorted(done)


class _Worker:
    def __init__(self, case: Callable[[int], str]):
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(case, theirs))
        self.process.start()
        theirs.close()
        self.case: int | None = None
        self.since = 0.0

    def give(self, left: "deque[int]") -> None:
        self.case = left.popleft() if left else None
        self.since = time.monotonic()
        if self.case is not None:
            self.pipe.send(self.case)

    def take(self) -> Outcome:
        assert self.case is not None
        try:
            return Outcome(*self.pipe.recv())
        except EOFError:
            self.process.join()
            return Outcome(self.case, f"died: exit {self.process.exitcode}", 0.0, 0)

    def overdue(self) -> Outcome | None:
        assert self.case is not None
        spent = time.monotonic() - self.since
        return Outcome(self.case, "hung: killed", spent, 0) if spent > HANG_SECONDS else None

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(case: Callable[[int], str], pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        before, start = _memory("VmRSS"), time.process_time()
        _forget_peak()
        try:
            fault = case(number)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            fault = f"raw {type(error).__name__} at {place}: {str(error)[:200]}"
        seconds = time.process_time() - start
        pipe.send((number, fault, seconds, max(_memory("VmHWM") - before, 0)))


def _memory(field: str) -> int:
    """Bytes in use now (VmRSS) or at most since `_forget_peak` (VmHWM); 0 where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field)), 0)


def _forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def start(function: Callable[..., Any], *arguments: Any) -> Any:
    """A process of its own, in which a function runs; the exit status is what it returns."""
    process = _CONTEXT.Process(target=_call, args=(function, arguments), daemon=True)
    process.start()
    return process


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os._exit(int(function(*arguments) or 0))
