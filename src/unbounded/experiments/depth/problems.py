"""The problems of the depth suite: what each is, and its rows to train, choose and test on.

Every problem is either for development (a recipe or a rule may be chosen on it) or for testing
(nobody looks at it before everything is chosen). A further group of problems is a list of
`Problem`s, added to `PROBLEMS`; if its networks are no population of dense ones, it also needs
an entry in `runs.TRAINERS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unbounded import scaling
from unbounded.data import spiral, tent, uci
from unbounded.experiments import StudyError

Pair = tuple[Tensor, Tensor]
Rows = NDArray[np.int64]

ROWS, TEST_ROWS = 1024, 4096  # of problems that are made: to train and validate on, and to test
VALIDATION = 0.2  # of the rows that are not for testing
MOST_ROWS = 10_000  # to train and validate on; larger tables lose the rest, but keep their tests


@dataclass(frozen=True)
class Parts:
    """Inputs and targets to train on, to choose on and to test on; inputs are standardised."""

    train: Pair
    validation: Pair
    test: Pair
    scale: float = 1.0
    """A regression target's unit: it was divided by this."""


@dataclass(frozen=True)
class Problem:
    """One problem of the suite.

    Attributes:
        name: of its files and for `--problems`.
        group: "spirals", "tents", "uci" or "sklearn".
        about: a few words.
        task: "classes" (scored by accuracy) or "regression" (by RMSE in the target's units).
        role: "development" or "test".
        outputs: classes, or targets.
        make: seed and folder of the data ↦ the parts.
        population: problems of one population have one shape and train together.
        trainer: who trains it, a key of `runs.TRAINERS`.
        needed: the depth that is enough by construction, where that is known.
        limit: the best score that anybody can expect, where that is known.
        splits: how many seeds it has, where they are limited.
        depths: fixed ones of its own, instead of the suite's.
        starts: the UDN's first μ, instead of the suite's.
        start: the one of these that is compared.
    """

    name: str
    group: str
    about: str
    task: str
    role: str
    outputs: int
    make: Callable[[int, Path | None], Parts]
    population: str
    trainer: str = "dense"
    needed: int | None = None
    limit: float | None = None
    splits: int | None = None
    depths: tuple[int, ...] | None = None
    starts: tuple[float, ...] | None = None
    start: float | None = None

    def data(self, seed: int, folder: Path | None = None) -> Parts:
        """The parts of a seed."""
        return self.make(seed, folder)

    def described(self) -> dict[str, Any]:
        """What a file of results says of it."""
        names = ("name", "group", "about", "task", "role", "needed", "limit")
        return {name: getattr(self, name) for name in names}


def chosen(words: Sequence[str]) -> list[Problem]:
    """The problems of these names and groups, in the order of `PROBLEMS`."""
    known = {*PROBLEMS, *(problem.group for problem in PROBLEMS.values())}
    for word in words:
        if word not in known:
            groups = dict.fromkeys(problem.group for problem in PROBLEMS.values())
            raise StudyError(
                f"--problems: there is no {word!r}; there are the groups {', '.join(groups)}, "
                f"and {', '.join(PROBLEMS)}"
            )
    return [p for p in PROBLEMS.values() if not words or p.name in words or p.group in words]


# Problems that are made -------------------------------------------------------------------------


def _spiral(omega: int) -> Problem:
    def make(seed: int, folder: Path | None) -> Parts:
        train, validation, test = (
            spiral(omega, _rows(part), part=part, seed=seed) for part in _PARTS
        )
        return Parts(train, validation, test)

    return Problem(
        name=f"spiral-{omega}",
        group="spirals",
        about=f"two arms of a spiral, ω = {omega}",
        task="classes",
        role=_role(omega in (2, 10, 18, 26)),
        outputs=2,
        make=make,
        population="spirals",
    )


def _tent(folds: int) -> Problem:
    def make(seed: int, folder: Path | None) -> Parts:
        def pair(part: str) -> Pair:
            x, y = tent(folds, _rows(part), part=part, seed=seed)
            return (x - 0.5) * 12**0.5, y  # mean and deviation of U(0, 1)

        train, validation, test = map(pair, _PARTS)
        return Parts(train, validation, test)

    return Problem(
        name=f"tent-{folds}",
        group="tents",
        about=f"side of the {folds}-fold tent map, {2**folds} changes, 5 % of labels wrong",
        task="classes",
        role=_role(folds % 2 == 1),
        outputs=2,
        make=make,
        population="tents",
        needed=folds,
        limit=0.95,
    )


def _rows(part: str) -> int:
    return TEST_ROWS if part == "test" else ROWS


# Tables -----------------------------------------------------------------------------------------


def _uci(name: str) -> Problem:
    splits = uci.SETS[name].splits

    def make(seed: int, folder: Path | None) -> Parts:
        data = _loaded(name, folder)
        mask = data.test_masks[seed]
        rest = np.random.default_rng(seed).permutation(np.flatnonzero(~mask))[:MOST_ROWS]
        size = int(VALIDATION * len(rest))
        return _table(data.x, data.y, (rest[size:], rest[:size], np.flatnonzero(mask)), True)

    return Problem(
        name=f"uci-{name}",
        group="uci",
        about=f"the UCI set {name}, its standard splits",
        task="regression",
        role=_role(name in ("boston", "concrete", "wine", "kin8nm")),
        outputs=1,
        make=make,
        population=f"uci-{name}",
        splits=splits,
    )


@cache
def _loaded(name: str, folder: Path | None) -> uci.UCISet:
    return uci.load(name, folder)


def _sklearn(name: str, classes: int) -> Problem:
    def make(seed: int, folder: Path | None) -> Parts:
        from sklearn import datasets
        from sklearn.model_selection import train_test_split

        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)

        def split(rows: Rows) -> tuple[Rows, Rows]:
            strata = y[rows] if classes else None
            kept, held = train_test_split(
                rows, test_size=VALIDATION, random_state=seed, stratify=strata
            )
            return kept, held

        rest, test = split(np.arange(len(y)))
        train, validation = split(rest)
        return _table(x, y, (train, validation, test), not classes)

    return Problem(
        name=f"sklearn-{name.replace('_', '-')}",
        group="sklearn",
        about=f"scikit-learn's {name.replace('_', ' ')}",
        task="classes" if classes else "regression",
        role=_role(name in ("diabetes", "digits")),
        outputs=classes or 1,
        make=make,
        population=f"sklearn-{name.replace('_', '-')}",
    )


def _table(
    x: NDArray[np.float64], y: NDArray[Any], rows: tuple[Rows, Rows, Rows], numbers: bool
) -> Parts:
    """Standardised by the training rows, the target too if it is a number."""
    train = rows[0]
    center, spread = scaling.moments(x[train], np.ones(len(train)))
    inputs = torch.from_numpy(scaling.standardized(x, center, spread)).float()
    scale = 1.0
    if numbers:
        middle, unit = scaling.moments(y[train][:, None], np.ones(len(train)))
        targets = torch.from_numpy(scaling.standardized(y[:, None], middle, unit)).float()
        scale = float(unit[0])
    else:
        targets = torch.from_numpy(np.asarray(y, np.int64))
    parts = [(inputs[part], targets[part]) for part in map(torch.from_numpy, rows)]
    return Parts(parts[0], parts[1], parts[2], scale)


def _role(develops: bool) -> str:
    return "development" if develops else "test"


_PARTS = ("train", "validation", "test")
_SKLEARN = {"diabetes": 0, "breast_cancer": 2, "digits": 10, "wine": 3, "iris": 3}  # classes
PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        *(_spiral(omega) for omega in range(2, 31, 4)),
        *(_tent(folds) for folds in range(1, 7)),
        *(_uci(name) for name in uci.SETS),
        *(_sklearn(name, classes) for name, classes in _SKLEARN.items()),
    )
}
"""All problems, by name."""
