"""Waiting for processes whose work takes longer than a message may: as long as they live."""

import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from unbounded.parallel.processes import Processes, unreachable
from unbounded.parallel.start import timeout

_BEAT = 1.0  # seconds between signs of life
_LOOK = 0.05  # seconds between looks at who has come
_NO_MORE = 1 << 40  # added to the number of pieces that are taken, so that nobody takes another
_meetings = 0
T = TypeVar("T")


class Meeting:
    """A block in which each process works by itself; at its end they wait for each other.

    While it works, a process gives signs of life. Those that wait give up on one from which no sign
    came for as long as a message may take (`UNBOUNDED_TIMEOUT`). A process whose work fails comes
    to the meeting too, and of what they divide by `taken` nobody begins another piece.

    Args:
        processes: who meet; alone, there is nobody to wait for.

    Raises:
        ProcessError: if one has ended without coming.
    """

    def __init__(self, processes: Processes):
        self.processes = processes
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Meeting":
        global _meetings
        if self.processes.size == 1:
            return self
        _meetings += 1  # all processes count alike
        self._name = f"unbounded/meeting/{_meetings}"
        self._store = distributed_c10d._get_default_store()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="signs of life")
        self._thread.start()
        return self

    def taken(self, pieces: Sequence[T]) -> Iterator[T]:
        """Those pieces of work that this process comes to first; all name the same ones."""
        if self._thread is None:
            yield from pieces
            return
        while (number := self._take(1)) <= len(pieces):
            yield pieces[number - 1]

    def _take(self, count: int) -> int:
        """How many pieces are taken, with so many more."""
        try:
            return int(self._store.add(f"{self._name}/taken", count))
        except RuntimeError as lost:
            raise unreachable(self.processes.rank, self.processes.size, lost) from lost

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        if error is None or isinstance(error, Exception):  # not one who was told to go at once
            try:
                if error is not None:
                    self._take(_NO_MORE)
                self._wait()
            except RuntimeError as lost:
                if isinstance(lost, dist.DistError) or error is None:
                    raise unreachable(self.processes.rank, self.processes.size, lost) from lost

    def _beat(self) -> None:
        while not self._end.wait(_BEAT):
            try:
                self._store.add(f"{self._name}/{self.processes.rank}", 1)
            except RuntimeError:  # whoever keeps the store has gone: the end of the block tells
                return

    def _wait(self) -> None:
        size = self.processes.size
        patience = timeout()
        self._store.add(f"{self._name}/come", 1)
        seen, since = -1, time.monotonic()
        while int(self._store.add(f"{self._name}/come", 0)) < size:
            # One sign of anybody is enough: the others are waiting here, or at work.
            signs = sum(int(self._store.add(f"{self._name}/{rank}", 0)) for rank in range(size))
            if signs != seen:
                seen, since = signs, time.monotonic()
            elif time.monotonic() - since > patience:
                raise RuntimeError(f"no sign of life for {patience:g} seconds")
            time.sleep(_LOOK)
