"""What the spiral study trains: its settings, and the network of each run."""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from unbounded.baselines import DenseODE, dun, dun_original, plain
from unbounded.data import spiral
from unbounded.depth import DepthFamily, FixedDepth, TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.experiments import StudyError
from unbounded.layers import Dense, PreNormDense, ResidualDense
from unbounded.layers.init import Init, he
from unbounded.likelihoods import Categorical
from unbounded.model import UDN
from unbounded.training import PRESETS
from unbounded.training.presets import half_cosine

OMEGAS = (0.0, 1.0, *(float(omega) for omega in range(2, 31, 2)))
"""The authors' grid of rotation speeds."""
MODELS = ["udn", "omega1-10", "dun10"]
ODES, DUNS = ("node", "anode"), ("dun10", "dun10-original")
AUGMENTED = 5
"""Zeros that ANODE adds to the two coordinates, as Dupont et al. on toy problems."""
_BY_DEPTH = ("omega", "resnet")  # kinds with a network for each depth, all in one population
ROWS = 1024
CLASSES = 2
SETTLED = PRESETS["settled"]
"""The library's own recipe: among the initialisations, but it is all of what all models get."""


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on."""

    models: tuple[str, ...]
    omegas: tuple[float, ...] = OMEGAS
    seeds: int = 5
    epochs: int = 4000
    lr: tuple[float, ...] = (0.005,)
    init: tuple[str, ...] = ("default",)
    width: int = 32
    rate: float = 1.0
    concentrated_rate: float = 4.0
    concentration: float = 4.0
    depth_lr_ratio: float = 0.1
    dun_depth_lr_ratio: float = 1.0
    depth_warmup: int = 0
    average: float | None = None
    schedule: str = "constant"
    members: int = 1
    references: bool = True


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for, checked."""
    values = {f.name: getattr(options, f.name) for f in fields(Settings) if f.name in options}
    values |= {
        "models": tuple(dict.fromkeys(n for word in options.models for n in _names(word))),
        "omegas": tuple(options.omegas),
        "lr": tuple(options.lr),
        "init": tuple(dict.fromkeys(options.init)),
        "references": not options.no_references,
    }
    if options.quick:  # what was not asked for otherwise
        usual = Settings(models=())
        coarse = {"omegas": (2.0, 10.0, 18.0, 26.0), "seeds": 2, "epochs": 400}
        values |= {k: v for k, v in coarse.items() if values[k] == getattr(usual, k)}
        if options.models == MODELS:
            values["models"] = _QUICK
    for name in ("seeds", "epochs", "width", "members"):
        if values[name] < 1:
            raise StudyError(f"--{name} must be at least 1, got {values[name]}")
    for model in values["models"] if SETTLED.name in values["init"] else ():
        if model in ("udn-concentrated", "dun10-original"):
            raise StudyError(f"--models {model} has layers and a q(ℓ) of its own: not with settled")
        if model in ODES or model.startswith("resnet"):
            raise StudyError(f"--models {model} has layers of its own: not with settled")
    return Settings(**values)


@dataclass(frozen=True)
class SpiralRun:
    """One network of the study, or one ensemble of them."""

    model: str
    init: str
    lr: float
    omega: float
    seed: int

    def data(self, part: str) -> tuple[Tensor, Tensor]:
        """Its part of D(ω)."""
        return spiral(self.omega, ROWS, part=part, seed=self.seed)


@dataclass(frozen=True)
class Group:
    """Networks of one architecture, trained as one population."""

    name: str
    runs: tuple[SpiralRun, ...]


def groups(settings: Settings) -> list[Group]:
    """Populations: one for each architecture, all speeds, seeds, rates and depths within it."""
    found: dict[str, list[SpiralRun]] = {}
    for init in settings.init:
        for model in settings.models:
            kind = re.sub(r"\d+$", "", model) if model.startswith(_BY_DEPTH) else model
            runs = found.setdefault(f"{kind}-{init}", [])
            runs += [
                SpiralRun(model, init, lr, omega, seed)
                for lr in settings.lr
                for omega in settings.omegas
                for seed in range(settings.seeds)
            ]
    return [Group(name, tuple(runs)) for name, runs in found.items()]


def build(run: SpiralRun, settings: Settings, member: int = 0) -> UDN:
    """The network of a run; the members of an ensemble differ in their seed alone."""
    seed = run.seed + 1000 * member
    init, likelihood = INITS[run.init], Categorical(CLASSES)
    sizes = (2, settings.width, CLASSES)
    if run.init == SETTLED.name:
        if run.model == "dun10":
            return dun(*sizes, likelihood, layers=PreNormDense, seed=seed)
        own = SETTLED.family() if run.model == "udn" else FixedDepth(_depth(run.model))
        return UDN(SETTLED.layers(*sizes), likelihood, own, seed=seed)
    if run.model.startswith("dun"):
        make: Callable[..., UDN] = dun if run.model == "dun10" else dun_original
        return make(*sizes, likelihood, init=init, seed=seed)
    if run.model in ODES:
        zeros = AUGMENTED if run.model == "anode" else 0
        ode = DenseODE(2, CLASSES, width=settings.width, augment=zeros, init=init)
        return plain(ode, likelihood, seed=seed)
    if run.model.startswith("resnet"):
        layers = ResidualDense(*sizes, init=init)
        return UDN(layers, likelihood, FixedDepth(_depth(run.model)), seed=seed)
    depth: DepthFamily
    if run.model == "udn":
        depth = TruncatedPoisson(settings.rate)
    elif run.model == "udn-concentrated":
        depth = TruncatedConwayMaxwell(settings.concentrated_rate, settings.concentration)
    else:
        depth = FixedDepth(_depth(run.model))
    return UDN(Dense(*sizes, init=init), likelihood, depth, seed=seed)


def fitting(run: SpiralRun, settings: Settings) -> dict[str, Any]:
    """How to `fit` a population of runs such as this one."""
    epochs = settings.epochs
    is_dun = run.model.startswith("dun")
    found: dict[str, Any] = {
        "depth_lr_ratio": settings.dun_depth_lr_ratio if is_dun else settings.depth_lr_ratio,
        "schedule": SCHEDULES[settings.schedule](epochs),
        "depth_schedule": lambda epoch: float(epoch >= settings.depth_warmup),
        "average": settings.average,
    }
    if run.init == SETTLED.name:
        own = SETTLED.fitting(build(run, settings).depth, validates=True)
        if settings.average is not None:
            own["average"] = settings.average
        if "depth_rule" in own:
            del found["depth_schedule"], found["depth_lr_ratio"]  # of an optimiser's λ
        found |= own
    return found


def settled(settings: Settings) -> dict[str, Any]:
    """What `fitting` takes in place of the settings for runs of our own recipe, for the record."""
    if SETTLED.name not in settings.init:
        return {}
    average = SETTLED.average if settings.average is None else settings.average
    return {"settled": {"average": average, "clip": SETTLED.clip}}


def _depth(model: str) -> int:
    return int(model.removeprefix("omega").removeprefix("resnet"))


def identity(linear: torch.nn.Linear) -> None:
    """He's initialisation where the sizes differ; else the identity, so that a new layer of
    ReLUs hands on what it is given, plus a tenth of He's noise to tell its units apart.
    """
    he(linear)
    if linear.in_features == linear.out_features:
        with torch.no_grad():
            linear.weight.mul_(0.1).add_(torch.eye(linear.in_features))


def _names(word: str) -> list[str]:
    """omega1-3 ↦ omega1, omega2, omega3; other names as they are, if there is such a model."""
    match = re.fullmatch(r"(omega|resnet)(\d+)(?:-(\d+))?", word)
    if match and 1 <= int(match[2]) <= int(match[3] or match[2]):
        return [f"{match[1]}{d}" for d in range(int(match[2]), int(match[3] or match[2]) + 1)]
    if word in ("udn", "udn-concentrated", *DUNS, *ODES):
        return [word]
    raise StudyError(
        f"--models: there is no {word!r}; there are udn, udn-concentrated, omega1, omega2, …, "
        "omega1-10, resnet1, …, dun10, dun10-original, node and anode"
    )


INITS: dict[str, str | Init] = {"default": "default", "he": "he", "identity": identity}
INITS[SETTLED.name] = "he"
SCHEDULES: dict[str, Callable[[int], Callable[[int], float] | None]] = {
    "constant": lambda epochs: None,
    # From the full rate to a hundredth of it along half a cosine.
    "cosine": lambda epochs: lambda t: half_cosine(t / epochs, 0.01),
}
_QUICK = ("udn", "omega2", "omega4", "omega6", "dun10")
