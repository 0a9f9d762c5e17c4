"""What training asks of the other processes. Alone, every question is answered at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unbounded.layers.base import of_peers
from unbounded.parallel.buckets import Exchange
from unbounded.parallel.rows import own_rows

T = TypeVar("T")
_STEPS_LATER = 2  # that what a GPU has summed is looked at


class ProcessError(RuntimeError):
    """Processes of one run do not fit together, or one of them has gone; the same in all."""


class Processes:
    """The processes of a run; this class is a process alone, which costs nothing."""

    rank: int = 0
    """Which one this is, from 0."""
    size: int = 1
    """How many there are."""
    local_size: int = 1
    """How many of them share the memory of this machine."""
    needs_own_gpus: bool = False
    """Whether NCCL sums what is on GPUs, of which each process then needs one."""
    has_rows: bool = True
    """Whether the rows that are run here count; where there are none, one stands in for them."""
    asks_end: bool = False
    """Whether this process was asked to end; the others learn of it with the next step."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that talks and writes."""
        return self.rank == 0

    def own_rows(self, rows: int) -> tuple[slice, float]:
        """The rows of a batch that are this process's, and their share of the batch."""
        return own_rows(rows, self.rank, self.size)

    def agreeing(
        self, error: Callable[[str], Exception] = ProcessError
    ) -> AbstractContextManager[None]:
        """A block that fails in all processes if it fails in one: there, with this error."""
        return nullcontext()

    def exchange(self, model: nn.Module) -> Exchange | None:
        """Who sums the gradients of a model; None where there is nobody to share with."""
        return None

    def release(self, model: nn.Module) -> None:
        """Let go of what `exchange` keeps of a model."""

    def sum(self, *tensors: Tensor) -> None:
        """Sums over all processes, in place."""

    def mean(self, *tensors: Tensor) -> None:
        """Means over all processes, in place."""

    def telling(self) -> AbstractContextManager[None]:
        """A block that sends messages by itself: one line for a peer that does not answer."""
        return nullcontext()

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank: plain data or tensors."""
        return [value]

    def begin(self) -> None:
        """A run begins."""
        self.asks_end = False

    def end_asked(self, here: bool) -> bool:
        """Whether any process was asked to end, as of the last steps; `here`: this one was."""
        return here


ALONE = Processes()
"""One process; also where torchrun has started many and each is to train by itself."""


class Several(Processes):
    """Two processes or more, by way of torch's process group.

    Args:
        local_size: how many of them are on this machine.
    """

    def __init__(self, local_size: int):
        self.rank, self.size, self.local_size = dist.get_rank(), dist.get_world_size(), local_size
        self.needs_own_gpus = "nccl" in dist.get_backend_config()
        self._asked: deque[tuple[Tensor, torch.cuda.Event | None]]
        self._asked = deque(maxlen=_STEPS_LATER + 1)
        self._exchanges: WeakKeyDictionary[nn.Module, Exchange] = WeakKeyDictionary()

    @contextmanager
    def agreeing(self, error: Callable[[str], Exception] = ProcessError) -> Iterator[None]:
        """Ask at its end how the block went elsewhere."""
        own: Exception | None = None
        try:
            yield
        except ProcessError:  # the others know, or cannot be reached
            raise
        except Exception as raised:
            own = raised
        texts = self.gather(None if own is None else str(own) or type(own).__name__)
        if own is not None:
            raise own
        for rank, text in enumerate(texts):
            if text is not None:
                raise error(f"process {rank} of {self.size}: {text}")

    def exchange(self, model: nn.Module) -> Exchange:
        """The model's own, with its buffers."""
        if model not in self._exchanges:
            self._exchanges[model] = Exchange()
        return self._exchanges[model]

    def release(self, model: nn.Module) -> None:
        """Its buffers, and the hooks in its parameters."""
        exchange = self._exchanges.pop(model, None)
        if exchange is not None:
            exchange.close()

    def sum(self, *tensors: Tensor) -> None:
        """One message each."""
        with self._telling():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def mean(self, *tensors: Tensor) -> None:
        """One message for all tensors of a dtype."""
        kinds: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for alike in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in alike]) / self.size
            self.sum(flat)
            parts = flat.split([tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: T) -> list[T]:
        """For what is small and rare."""
        found: list[Any] = [None] * self.size
        with self._telling():
            dist.all_gather_object(found, value)
        return found

    def begin(self) -> None:
        """What was asked of an earlier run is of no account."""
        super().begin()
        self._asked.clear()

    def note_asked(self, count: Tensor) -> None:
        """How many were asked to end, as it came with the gradients of a step.

        From a GPU it comes a little later, so that nobody waits for it, and to all alike.
        """
        event = None
        if count.is_cuda:
            host = torch.empty((), dtype=count.dtype, pin_memory=True)
            count, event = host.copy_(count, non_blocking=True), torch.cuda.Event()
            event.record()
        self._asked.append((count, event))

    def end_asked(self, here: bool) -> bool:
        """By the number that travelled with the gradients."""
        asked = False
        while self._asked and (self._asked[0][1] is None or len(self._asked) > _STEPS_LATER):
            count, event = self._asked.popleft()
            if event is not None:
                event.synchronize()
            asked |= bool(count > 0)
        return asked

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Only what was raised by the messages, and not by anything else in the block."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, ProcessError) or not of_peers(error):
                raise
            raise unreachable(self.rank, self.size, error) from error

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """One line for what torch has to say of a peer that does not answer."""
        try:
            yield
        except RuntimeError as error:  # those of torch.distributed are of this kind
            raise unreachable(self.rank, self.size, error) from error


def unreachable(rank: int, size: int, error: Exception) -> ProcessError:
    """One line for a peer that does not answer."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ProcessError(
        f"process {rank} of {size} cannot reach the others: one has ended, or did not answer in "
        f"time ({said[:200]})"
    )


def sum_step(
    processes: Processes, exchange: Exchange, values: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Sums over processes of a step's gradients, in place, and of its numbers, as they are given.

    Args:
        processes: several.
        exchange: of the model, begun before the last backward pass.
        values: scalars and vectors.
    """
    assert isinstance(processes, Several)
    parts = [value.reshape(-1).double() for value in values]
    flag = parts[0].new_full((1,), float(processes.asks_end))
    with processes._telling():
        total = exchange.finish(torch.cat([*parts, flag]))
    processes.note_asked(total[-1])
    found = total[:-1].split([len(part) for part in parts])
    return tuple(f.to(v.dtype).view_as(v) for f, v in zip(found, values, strict=True))
