"""The one recipe of the depth suite: which networks there are and how all of them are trained.

Fixed depths, UDNs and DUNs have the same layers, widths, initialisation, rates, batches and
number of epochs, and each keeps its best epoch by validation. What differs is q(ℓ) alone.
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any

from unbounded.baselines import dun
from unbounded.depth import FixedDepth, TruncatedNormal
from unbounded.experiments import StudyError, whole_numbers
from unbounded.experiments.depth.problems import PROBLEMS, Parts, Problem
from unbounded.experiments.spiral.recipe import SCHEDULES
from unbounded.experiments.uci.recipe import Recipe
from unbounded.layers import PreNormDense
from unbounded.likelihoods import Categorical, Gaussian, Likelihood
from unbounded.model import UDN
from unbounded.training import PRESETS, HeldOutAscent

PRESET = PRESETS["settled"]
"""The library's own recipe: its layers, averaging and depth rule are those of the suite."""
KINDS = {
    "fixed": "fixed depths",
    "udn": "UDNs",
    "spent": "UDNs, for a quarter of the search's time",
    "long": "UDNs, longest",
    "dun": "DUNs",
}
"""The populations of a problem, in the order of training."""
_MADE = ("spirals", "tents")  # their rate is constant
_POINTS = {"udn": 200}  # rows of each history that are kept while training
_FEW_POINTS = 20  # where the depth does not change


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on.

    Attributes:
        seeds: of data and weights.
        depths: the fixed ones; the deepest is also DUN's bound.
        starts: the UDN's first μ. The one in the middle is *the* UDN, the others test it.
        long: how many times longer the longest training is, by which the depth is tested; 1 for
            none.
        spent: how many times longer a UDN trains that takes up a quarter of the seconds of the
            search, one network after the other (`python -m benchmarks.search`).
        spiral_lr: the learning rate on spirals.
        tent_lr: on tents, whose networks are narrow.
        table_lr: the first one on tables, which have fewer rows and more noise; it falls to a
            hundredth of it along half a cosine.
        table_reference: place and spread of the rule's ρ on tables, which need few layers; on
            problems that are made it is the layers' own.
        dun_depth_lr_ratio: rate of DUN's q(ℓ), as a multiple of it.
        average: decay a step of a moving average of all parameters; None for none.
        clip: the largest norm of a gradient; None for none.
        made_epochs: passes over problems that are made (1024 rows, 4 steps each).
        table_steps: Adam steps on tables, about; the number of epochs follows from it.
        spiral_width: of hidden layers.
        tent_width: small, so that depth matters.
        table_width: of hidden layers.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    depths: tuple[int, ...] = tuple(range(1, 17))
    starts: tuple[float, ...] = (1.0, 4.0, 16.0)
    long: int = 4
    spent: int = 3
    spiral_lr: float = 0.005
    tent_lr: float = 0.0025
    table_lr: float = 0.001
    table_reference: tuple[float, float] = (6.0, 4.0)
    dun_depth_lr_ratio: float = 1.0
    average: float | None = PRESET.average
    clip: float | None = PRESET.clip
    made_epochs: int = 4000
    table_steps: int = 4000
    spiral_width: int = 32
    tent_width: int = 16
    table_width: int = 64

    @property
    def start(self) -> float:
        """The start of the UDN that is compared with others."""
        return self.starts[len(self.starts) // 2]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many times the usual epochs a UDN is trained for, in rising order."""
        return tuple(sorted({1, min(self.spent, self.long), self.long}))


QUICK = Settings(
    seeds=(0, 1),
    depths=(1, 2, 4, 8),
    starts=(1.0, 4.0),
    long=2,
    spent=2,
    made_epochs=60,
    table_steps=200,
)
QUICK_PROBLEMS = ("spiral-2", "spiral-10", "tent-3", "sklearn-diabetes", "sklearn-wine")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for, checked."""
    usual = QUICK if options.quick else Settings()
    changes: dict[str, Any] = {}
    if options.seeds is not None:
        changes["seeds"] = whole_numbers("seeds", options.seeds, least=0)
    if options.depths is not None:
        changes["depths"] = whole_numbers("depths", options.depths, least=1)
    if options.starts is not None:
        changes["starts"] = tuple(map(float, whole_numbers("starts", options.starts, least=1)))
    for name, least in (("made_epochs", 1), ("table_steps", 1)):
        value = getattr(options, name)
        if value is not None:
            if value < least:
                raise StudyError(f"--{name.replace('_', '-')} must be at least {least}")
            changes[name] = value
    if options.no_long:
        changes["long"] = 1
    return replace(usual, **changes)


@dataclass(frozen=True)
class Run:
    """One network of the suite."""

    problem: str
    model: str  # "fixed", "udn" or "dun"
    depth: int | None  # of a fixed one
    start: float | None  # the first μ of a UDN
    length: int  # how many times the usual epochs
    seed: int


def runs_of(problem: Problem, kind: str, settings: Settings) -> list[Run]:
    """The networks of one kind, see `KINDS`; none where `kind` is not asked for."""
    seeds = [s for s in settings.seeds if problem.splits is None or s < problem.splits]
    name, one, start = problem.name, 1, start_of(problem, settings)
    depths, starts = problem.depths or settings.depths, problem.starts or settings.starts
    if kind == "fixed":
        return [Run(name, "fixed", d, None, one, s) for d in depths for s in seeds]
    if kind == "udn":
        if is_on_the_way(problem, settings):
            starts = tuple(mu for mu in starts if mu != start)
        return [Run(name, "udn", None, mu, one, s) for mu in starts for s in seeds]
    if kind in ("spent", "long"):
        _, *more = settings.lengths
        times = more[:-1] if kind == "spent" else more[-1:]
        if kind == "spent" and is_on_the_way(problem, settings):
            return []
        return [Run(name, "udn", None, start, length, s) for length in times for s in seeds]
    return [Run(name, "dun", None, None, one, s) for s in seeds]


def is_on_the_way(problem: Problem, settings: Settings) -> bool:
    """Whether the longest training of a UDN begins with shorter ones, which are scored on its way.

    So it is where the rate is constant: all would take the same steps.
    """
    return problem.group in _MADE and settings.long > 1


def start_of(problem: Problem, settings: Settings) -> float:
    """The start of the UDN that is compared."""
    return settings.start if problem.start is None else problem.start


def build(run: Run, parts: Parts, settings: Settings) -> UDN:
    """A network of a run on these data."""
    problem = PROBLEMS[run.problem]
    likelihood: Likelihood
    likelihood = Categorical(problem.outputs) if problem.task == "classes" else Gaussian()
    sizes = parts.train[0].shape[1], width(problem, settings), problem.outputs
    if run.model == "dun":
        deepest = max(problem.depths or settings.depths)
        return dun(*sizes, likelihood, max_depth=deepest, layers=PreNormDense, seed=run.seed)
    layers = PRESET.layers(*sizes)
    if run.depth is not None:
        return UDN(layers, likelihood, FixedDepth(run.depth), seed=run.seed)
    assert run.start is not None
    family = TruncatedNormal(place=run.start, spread=max(1.0, run.start / 2))
    return UDN(layers, likelihood, family, seed=run.seed)


def width(problem: Problem, settings: Settings) -> int:
    """Of hidden layers."""
    widths = {"spirals": settings.spiral_width, "tents": settings.tent_width}
    return widths.get(problem.group, settings.table_width)


def fitting(problem: Problem, run: Run, rows: int, settings: Settings) -> dict[str, Any]:
    """How to `fit` a population of runs such as this one; `rows` are those to train on."""
    table = Recipe(steps=settings.table_steps)
    rates = {"spirals": settings.spiral_lr, "tents": settings.tent_lr}
    is_made = problem.group in _MADE
    batch = 256 if is_made else table.batch_size(rows)
    epochs = run.length * (settings.made_epochs if is_made else table.epochs(rows))
    found: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch,
        "lr": rates.get(problem.group, settings.table_lr),
        "schedule": SCHEDULES["constant" if is_made else "cosine"](epochs),
        "average": settings.average,
        "clip": settings.clip,
        "history_every": max(1, epochs // run.length // _POINTS.get(run.model, _FEW_POINTS)),
    }
    if run.model == "udn":
        found["depth_rule"] = HeldOutAscent(reference=None if is_made else settings.table_reference)
    if run.model == "dun":
        found["depth_lr_ratio"] = settings.dun_depth_lr_ratio
    return found
