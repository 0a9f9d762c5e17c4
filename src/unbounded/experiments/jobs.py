"""Several runs at once as processes of their own, and how they are stopped.

On an H200 with NVIDIA's MPS a few at once do a quarter more work in the same time. Each writes its
words into a log file. However this process ends, they end too, and what they had saved stays.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL = 0.1  # seconds
_PATIENCE = 60.0  # seconds a process has to end once it is asked to


def run_jobs(
    names: Sequence[str],
    command: Callable[[str], Sequence[str]],
    jobs: int,
    logs: Path,
    *,
    minutes: float | None = None,
    started: Callable[[str, Path], None] = lambda name, log: None,
    ended: Callable[[str, int], None] = lambda name, status: None,
) -> dict[str, int]:
    """Run commands, at most `jobs` at a time; returns the exit status of each that was begun.

    A command that fails does not hold up the others. On Ctrl-C all that run are asked to stop and
    waited for; a second Ctrl-C ends them at once.

    Args:
        names: of the commands.
        command: what to run, asked by name when its time has come.
        jobs: how many at a time.
        logs: folder for NAME.log of each, both output and errors; a log that is there goes on.
        minutes: begin no more after so many.
        started: told the name and the log of each process that begins.
        ended: told the name and the exit status of each that ends.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    logs.mkdir(parents=True, exist_ok=True)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    waiting = list(names)
    running: dict[str, subprocess.Popen[bytes]] = {}
    statuses: dict[str, int] = {}
    try:
        while waiting or running:
            if end is not None and time.monotonic() >= end:
                waiting.clear()
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                log = logs / f"{name}.log"
                with log.open("ab") as file:
                    # In a session of its own, so that Ctrl-C comes from us and comes once. Its
                    # standard input ends when we do, whatever we die of: see `stop_with_parent`.
                    running[name] = subprocess.Popen(
                        command(name),
                        stdin=subprocess.PIPE,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,
                    )
                started(name, log)
            for name in [n for n, process in running.items() if process.poll() is not None]:
                statuses[name] = _end(running.pop(name))
                ended(name, statuses[name])
            if running:
                time.sleep(_POLL)
    finally:
        _stop(list(running.values()))
    return statuses


def given(options: argparse.Namespace, *names: str) -> list[str]:
    """The words that give these options to another process as they were given to this one."""
    words: list[str] = []
    for name in names:
        option, value = f"--{name.replace('_', '-')}", getattr(options, name)
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [option, *map(str, value)] if value else []
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, wait, and kill those that do not."""
    try:
        for process in processes:
            process.terminate()
        end = time.monotonic() + _PATIENCE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
    finally:
        for process in processes:
            process.kill()  # which does nothing to one that has ended
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> int:
    if process.stdin is not None:
        process.stdin.close()
    return process.wait()


def stop_with_parent() -> None:
    """End this process, as Ctrl-C would, once its standard input ends: its parent is gone."""

    def watch() -> None:
        # Not sys.stdin: its lock, held here, would be waited for when the interpreter ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="parent").start()
