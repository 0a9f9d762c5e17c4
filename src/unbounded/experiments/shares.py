"""A study in several processes, as torchrun starts them: who does what, and who writes.

The first process prepares the folder and writes results, tables and figures. Runs are taken one by
one, each by the process that comes to it first, and leave their files in the folder, which all of
them must see. Where many networks train as one population, `fit` divides these itself. What fails
in one process is an error in all of them, and what is done by then stays for `--resume`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from unbounded import parallel
from unbounded.experiments import StudyError
from unbounded.parallel import Processes
from unbounded.parallel.meeting import Meeting

T = TypeVar("T")


def processes() -> Processes:
    """Those of this run; on GPUs each is given its own. To be asked before any other work."""
    parallel.choose_gpu()
    return parallel.current()


def planned(plan: Callable[[], T]) -> T:
    """What the first process prepares and finds, told to all."""
    everyone, found = parallel.current(), list[T]()
    with everyone.agreeing(StudyError), Meeting(everyone):
        if everyone.is_first:
            found.append(plan())
    return everyone.gather(found)[0][0]


@contextmanager
def divided(pieces: Sequence[T]) -> Iterator[Iterator[T]]:
    """The pieces of work that this process comes to first; the block ends when all are done."""
    everyone = parallel.current()
    with everyone.agreeing(StudyError), Meeting(everyone) as meeting, parallel.alone():
        yield meeting.taken(pieces)


@contextmanager
def concluded() -> Iterator[bool]:
    """The end of a study, which the first process sees to, whoever is told so; the others wait."""
    everyone = parallel.current()
    with everyone.agreeing(StudyError), Meeting(everyone), parallel.alone():
        yield everyone.is_first


def refuse_jobs(jobs: int) -> None:
    """A StudyError if a study is to start processes itself although others were started."""
    if jobs > 1 and parallel.current().size > 1:
        raise StudyError("--jobs starts processes itself, on one machine: leave it to torchrun")
