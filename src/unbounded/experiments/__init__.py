"""One study = one table or figure of the paper; `demo` is the shortest way to a depth posterior.

A study is a module with `add_arguments(parser)` and `run(options)`, and a line in `STUDIES`:
`unbounded reproduce NAME …` finds it there and imports it only when it is asked for.
"""

from typing import NamedTuple

import torch

from unbounded.devices import check_device


class StudyError(ValueError):
    """A study cannot do what it was asked for; the message tells the user why, in one line."""


class Study(NamedTuple):
    """Where a study is and what it does."""

    module: str
    about: str


def usable_device(name: str | None) -> str:
    """The device to train on, tried out; "auto" or None is the GPU if there is one."""
    if name is None or name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return check_device(name, StudyError)


def listed(words: str) -> list[str]:
    """The words between commas or blanks, as in options such as `--models udn,5`."""
    return words.replace(",", " ").split()


STUDIES: dict[str, Study] = {
    name: Study(f"unbounded.experiments.{name}", about)
    for name, about in {
        "cifar10": "Table 2 and the figures of the depth posterior on CIFAR-10",
        "depth": "a suite that measures depth inference: regret, cost, parsimony, start, length",
        "spiral": "Table 1 and the figures of accuracy and depth on the spirals",
        "theorem": "the truncated Poisson family: the appendix's figure and Theorem 1",
        "uci": "nine UCI regression sets against finite networks, DUN and ensembles",
    }.items()
}
