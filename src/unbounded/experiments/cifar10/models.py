"""Which networks the study knows: their names, their order, and how each is built."""

import re
from typing import TYPE_CHECKING, Any

from unbounded.baselines import MDEQ, BareODE, ResNet18, SharedHeadConv, StemODE
from unbounded.baselines.equilibrium import REPEAT
from unbounded.baselines.ode import is_ours
from unbounded.experiments.pages import SUBSCRIPTS
from unbounded.layers import Layers, ResidualConv

if TYPE_CHECKING:
    from unbounded.experiments.cifar10.recipe import Recipe

OTHERS = {
    "resnet18": "ResNet-18",
    "node": "NODE",
    "node-stem": "NODE on a stem",
    "anode": "ANODE",
    "anode-stem": "ANODE on a stem",
    "mdeq": "MDEQ",
}
"""Networks of other kinds, and what they are called."""
PACKAGES = {
    **dict.fromkeys(("node", "node-stem", "anode", "anode-stem"), "torchdiffeq"),
    "mdeq": "torchdeq",
}
"""Whose solvers they take, besides ours: of the extra `baselines`."""
KNOWN = f"udn, depths (5, 10, … or omega5, …), dun30, dun30-own and {', '.join(OTHERS)}"
ANODE = {"filters": 64, "augment": 10}  # Dupont et al. (2019) on CIFAR-10
STEM_AUGMENT = 64
_DEPTH = re.compile(r"(?:omega|Ω)?([0-9]{1,6})", re.ASCII)
_DUN = re.compile(r"dun([1-9][0-9]{0,3})(-own)?", re.ASCII)


def canonical(word: str) -> str:
    """The one name of a model: "omega08" ↦ "8".

    Raises:
        ValueError: if there is no such model.
    """
    depth = _DEPTH.fullmatch(word)
    if depth and int(depth[1]) > 0:
        return str(int(depth[1]))
    if word == "udn" or word in OTHERS or _DUN.fullmatch(word):
        return word
    raise ValueError(f"there is no {word!r}; there are {KNOWN}")


def fixed_depth(model: str) -> int | None:
    """ℓ of a network Ω_ℓ; None of any other."""
    return int(model) if model.isdecimal() else None


def dun_depth(model: str) -> int | None:
    """The largest depth of a DUN; None of any other model."""
    found = _DUN.fullmatch(model)
    return int(found[1]) if found else None


def label(model: str) -> str:
    """A model for people."""
    if model in OTHERS:
        return OTHERS[model]
    found = _DUN.fullmatch(model)
    if found:
        heads = "own heads" if found[2] else "one head"
        return f"DUN{found[1].translate(SUBSCRIPTS)}, {heads}"
    return "UDN" if model == "udn" else "Ω" + model.translate(SUBSCRIPTS)


def order(model: str) -> tuple[int, int, str]:
    """Where a model stands in tables: fixed depths, other kinds, DUNs, the UDN last."""
    depth, dun = fixed_depth(model), dun_depth(model)
    if depth is not None:
        return 0, depth, ""
    if model in OTHERS:
        return 1, list(OTHERS).index(model), ""
    return (2, dun, model) if dun is not None else (3, 0, model)


def infers_depth(model: str) -> bool:
    """Whether there is a posterior over depths."""
    return model == "udn" or dun_depth(model) is not None


def takes_whitening(model: str) -> bool:
    """Whether a first layer can stand before it; of a bare ODE the image itself is the state."""
    return model not in ("node", "anode")


def package(model: str, recipe: "Recipe") -> str | None:
    """What a model needs of the extra `baselines`; our own solvers need nothing."""
    ours = (
        recipe.deq_solver == REPEAT
        if model == "mdeq"
        else is_ours(recipe.ode_solver, recipe.ode_adjoint)
    )
    return None if ours else PACKAGES.get(model)


def layers(
    model: str, recipe: "Recipe", channels: int, num_classes: int, size: tuple[int, int]
) -> Layers:
    """The generator of a model's layers.

    Args:
        model: its name.
        recipe: how it is trained.
        channels: of what comes in.
        num_classes: size of a head's output.
        size: height and width of the images.
    """
    if model == "resnet18":
        return ResNet18(channels, num_classes, width=recipe.width)
    if model in PACKAGES and model != "mdeq":
        solving: dict[str, Any] = {
            "solver": recipe.ode_solver,
            "tolerance": recipe.ode_tolerance,
            "adjoint": recipe.ode_adjoint,
            "steps": recipe.ode_steps,
        }
        augments = model.startswith("anode")
        if model.endswith("-stem"):
            more = STEM_AUGMENT if augments else 0
            return StemODE(channels, num_classes, width=recipe.width, augment=more, **solving)
        if augments:
            solving |= ANODE
        return BareODE(channels, num_classes, size=size, **solving)
    if model == "mdeq":
        first = max(4, recipe.width // 2)
        return MDEQ(
            channels,
            num_classes,
            channels=(first, 2 * first, 4 * first, 8 * first),
            readout=4 * recipe.width,
            gradient=recipe.deq_gradient,
            solver=recipe.deq_solver,
            iterations=recipe.deq_iterations,
        )
    shares = dun_depth(model) is not None and not model.endswith("-own")
    kind = SharedHeadConv if shares else ResidualConv
    return kind(channels, num_classes, width=recipe.width, block=recipe.block, init=recipe.init)
