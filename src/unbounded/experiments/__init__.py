"""One study = one table or figure of the paper; `demo` is the shortest way to a depth posterior.

A study is a module with `add_arguments(parser)` and `run(options)`, and a line in `STUDIES`:
`unbounded reproduce NAME …` finds it there and imports it only when it is asked for. Under torchrun
processes divide its networks: see `shares`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from unbounded import parallel
from unbounded.devices import check_device


class StudyError(ValueError):
    """A study cannot do what it was asked for; the message tells the user why, in one line."""


class Study(NamedTuple):
    """Where a study is and what it does."""

    module: str
    about: str
    takes_processes: bool = True
    """Whether torchrun may start it: processes then divide its networks."""


def check_processes(name: str) -> None:
    """A StudyError if several processes were started for a study that has nothing to divide."""
    if parallel.started() > 1 and not STUDIES[name].takes_processes:
        raise StudyError(f"the study {name} runs in one process, without torchrun")


def usable_device(name: str | None) -> str:
    """The device to train on, tried out; "auto" or None is the GPU if there is one."""
    if name is None or name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return check_device(name, StudyError)


def listed(words: str) -> list[str]:
    """The words between commas or blanks, as in options such as `--models udn,5`."""
    return words.replace(",", " ").split()


_LARGEST, _MOST = 10**9, 10**5  # of the numbers of an option: themselves, and of a range


def whole_numbers(option: str, words: Sequence[str], least: int) -> tuple[int, ...]:
    """The numbers of an option such as `--depths 1-3 5`: 1, 2, 3, 5."""
    found: list[int] = []
    for word in listed(" ".join(words)):
        first, _, last = word.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise StudyError(f"--{option}: {word!r} is no number and no range such as 1-4")
        if int(last or first) > _LARGEST or int(last or first) - int(first) > _MOST:
            raise StudyError(f"--{option}: {word} is too large, or too many numbers")
        found += range(int(first), int(last or first) + 1)
    found = sorted(set(found))
    if not found or found[0] < least:
        raise StudyError(f"--{option} must be numbers of at least {least}")
    return tuple(found)


STUDIES: dict[str, Study] = {
    name: Study(f"unbounded.experiments.{name}", about, name != "theorem")
    for name, about in {
        "cifar10": "Table 2 and the figures of the depth posterior on CIFAR-10",
        "depth": "a suite that measures depth inference: regret, cost, parsimony, start, length",
        "sequences": "transformers that infer their depth: k-hop induction, groups, text",
        "spiral": "Table 1 and the figures of accuracy and depth on the spirals",
        "theorem": "the truncated Poisson family: the appendix's figure and Theorem 1",
        "uci": "nine UCI regression sets against finite networks, DUN and ensembles",
    }.items()
}
