"""What is compared: the UDN, finite networks, DUN, ensembles of them, three by other recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unbounded.depth import (
    DepthFamily,
    FiniteDepth,
    FixedDepth,
    TruncatedConwayMaxwell,
    TruncatedPoisson,
)
from unbounded.experiments.uci.recipe import Recipe
from unbounded.layers import Dense
from unbounded.likelihoods import BalancedGaussian
from unbounded.model import UDN
from unbounded.priors import DepthPrior, GaussianWeights, PoissonDepth, UniformDepth

FINITE = ("f2", "f3", "f4", "f5", "f6")
DUN_DEPTHS = 10
MEMBERS = 5

TABLES = "tables"
"""`UDNRegressor` with its defaults: no network of the study's own recipe."""
CATBOOST = "catboost"
"""CatBoost with its defaults: no network at all."""
REALMLP = "realmlp"
"""RealMLP-TD of pytabkit with its defaults."""

LABELS = {
    "udn": "UDN",
    "udn-paced": "UDN, λ's pace chosen",
    **{name: f"f{name[1:]}, finite" for name in FINITE},
    "dun": "DUN (dense, shared head)",
    "deep-ensemble": f"{MEMBERS} × finite",
    "udn-ensemble": f"{MEMBERS} × UDN",
    TABLES: "UDNRegressor",
    CATBOOST: "CatBoost",
    REALMLP: "RealMLP-TD",
}
"""The models of the study, in their order, and what tables call them."""

ALONE = (TABLES, CATBOOST, REALMLP)
"""Those that are fitted one split after another, each by a recipe of its own; the rest are networks
of the study's recipe."""


@dataclass(frozen=True)
class Variant:
    """A UDN by its posterior over the depth. What is None is as the recipe has it."""

    concentration: float = 1.0  # ν of TruncatedConwayMaxwell; 1 is the paper's truncated Poisson
    rate: float | None = None  # the first λ or μ
    prior_rate: float | None = None
    depth_lr_ratio: float | None = None

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with these changes."""
        changes: dict[str, Any] = {**vars(self), "concentration": None}
        return replace(recipe, **{k: v for k, v in changes.items() if v is not None})

    def family(self, recipe: Recipe) -> DepthFamily:
        """q(ℓ; λ) with its first λ."""
        if self.concentration == 1:
            return TruncatedPoisson(self.of(recipe).rate)
        return TruncatedConwayMaxwell(self.of(recipe).rate, self.concentration)


VARIANTS = {"udn": Variant(), "udn-slow": Variant(rate=4.0, depth_lr_ratio=0.1)}
"""The UDNs of the study."""


ENSEMBLES = {"deep-ensemble": FINITE, "udn-ensemble": ("udn",)}
"""Equal networks with different seeds, whose mixtures are averaged, and what they may be made of;
if several, each split has those which do best on its validation parts."""
CHOSEN = {"udn-paced": tuple(VARIANTS)}
"""One network: each split has the one which does best on its validation parts."""


def choices_of(model: str) -> tuple[str, ...]:
    """The networks that a model may be made of; none for those of `ALONE`."""
    if model in ALONE:
        return ()
    return (ENSEMBLES | CHOSEN).get(model, (model,))


def single_models(models: list[str]) -> list[str]:
    """The networks that these models are made of: in the order of `LABELS`, then any others."""
    needed = dict.fromkeys(name for model in models for name in choices_of(model))
    return [name for name in dict.fromkeys([*LABELS, *needed]) if name in needed]


def build(
    name: str,
    in_features: int,
    scale: float,
    recipe: Recipe,
    seed: int,
    variants: Mapping[str, Variant] = VARIANTS,
) -> UDN:
    """A new network: one of the variants, "f2" … "f6" or "dun". `scale` is its prior's."""
    likelihood = BalancedGaussian(recipe.beta)
    sizes = in_features, recipe.width, likelihood.num_outputs(1)
    layers = Dense(*sizes, init="he", shares_head=name == "dun")
    depth: DepthFamily
    prior: DepthPrior = PoissonDepth(variants.get(name, Variant()).of(recipe).prior_rate)
    if name in variants:
        depth = variants[name].family(recipe)
    elif name == "dun":
        depth, prior = FiniteDepth(DUN_DEPTHS), UniformDepth(DUN_DEPTHS)
    elif name in FINITE:
        depth = FixedDepth(int(name[1:]))
    else:
        raise ValueError(f"there is no network {name!r}")
    return UDN(layers, likelihood, depth, prior, GaussianWeights(scale), seed=seed)
