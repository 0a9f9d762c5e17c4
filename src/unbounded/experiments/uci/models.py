"""What is compared: the UDN, finite networks, DUN, and ensembles of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from unbounded.depth import (
    DepthFamily,
    FiniteDepth,
    FixedDepth,
    TruncatedConwayMaxwell,
    TruncatedPoisson,
)
from unbounded.experiments.uci.likelihood import BalancedGaussian
from unbounded.experiments.uci.recipe import Recipe
from unbounded.layers import Dense
from unbounded.model import UDN
from unbounded.priors import DepthPrior, GaussianWeights, PoissonDepth, UniformDepth

FINITE = ("f2", "f3", "f4", "f5", "f6")
DUN_DEPTHS = 10
MEMBERS = 5

LABELS = {
    "udn": "UDN",
    "udn-paced": "UDN, λ's pace chosen",
    **{name: f"f{name[1:]}, finite" for name in FINITE},
    "dun": "DUN (dense, shared head)",
    "deep-ensemble": f"{MEMBERS} × finite",
    "udn-ensemble": f"{MEMBERS} × UDN",
}
"""The models of the study, in their order, and what tables call them."""


@dataclass(frozen=True)
class Variant:
    """A UDN by its posterior over the depth. What is None is as the recipe has it.

    Attributes:
        concentration: ν of `TruncatedConwayMaxwell`; 1 is the paper's truncated Poisson.
        rate: the first λ or μ.
        prior_rate: α of the prior on the depth.
        depth_lr_ratio: rate of λ as a multiple of the weights'.
    """

    concentration: float = 1.0
    rate: float | None = None
    prior_rate: float | None = None
    depth_lr_ratio: float | None = None

    def family(self, recipe: Recipe) -> DepthFamily:
        """q(ℓ; λ) with its first λ."""
        rate = recipe.rate if self.rate is None else self.rate
        if self.concentration == 1:
            return TruncatedPoisson(rate)
        return TruncatedConwayMaxwell(rate, self.concentration)

    def prior(self, recipe: Recipe) -> DepthPrior:
        """p(ℓ)."""
        return PoissonDepth(recipe.prior_rate if self.prior_rate is None else self.prior_rate)

    def lr_ratio(self, recipe: Recipe) -> float:
        """Rate of λ as a multiple of the weights'."""
        return recipe.depth_lr_ratio if self.depth_lr_ratio is None else self.depth_lr_ratio


VARIANTS = {"udn": Variant(), "udn-slow": Variant(rate=4.0, depth_lr_ratio=0.1)}
"""The UDNs of the study."""


@dataclass(frozen=True)
class Ensemble:
    """Equal networks with different seeds, whose mixtures are averaged.

    Attributes:
        of: the networks that it may be made of; if several, each split has those which do best
            on its validation parts.
    """

    of: tuple[str, ...]


ENSEMBLES = {"deep-ensemble": Ensemble(FINITE), "udn-ensemble": Ensemble(("udn",))}

CHOSEN = {"udn-paced": tuple(VARIANTS)}
"""One network: each split has the one which does best on its validation parts."""


def choices_of(model: str) -> tuple[str, ...]:
    """The networks that a model may be made of."""
    return ENSEMBLES[model].of if model in ENSEMBLES else CHOSEN.get(model, (model,))


def single_models(models: list[str]) -> list[str]:
    """The networks that these models are made of: in the order of `LABELS`, then any others."""
    needed = dict.fromkeys(name for model in models for name in choices_of(model))
    return [name for name in dict.fromkeys([*LABELS, *needed]) if name in needed]


def architecture(name: str) -> str:
    """Networks of one architecture can be trained as one population."""
    return "shared head" if name == "dun" else "head for each depth"


def build(
    name: str,
    in_features: int,
    scale: float,
    recipe: Recipe,
    seed: int,
    variants: Mapping[str, Variant] = VARIANTS,
) -> UDN:
    """A new network.

    Args:
        name: of one of the variants, "f2" … "f6" or "dun".
        in_features: how many inputs there are.
        scale: s of the prior on its weights.
        recipe: the rest.
        seed: of its first weights.
        variants: the UDNs that there are.
    """
    likelihood = BalancedGaussian(recipe.beta)
    layers = Dense(
        in_features,
        recipe.width,
        likelihood.num_outputs(1),
        init="he",
        shares_head=name == "dun",
    )
    depth: DepthFamily
    prior: DepthPrior = PoissonDepth(recipe.prior_rate)
    if name in variants:
        depth, prior = variants[name].family(recipe), variants[name].prior(recipe)
    elif name == "dun":
        depth, prior = FiniteDepth(DUN_DEPTHS), UniformDepth(DUN_DEPTHS)
    elif name in FINITE:
        depth = FixedDepth(int(name[1:]))
    else:
        raise ValueError(f"there is no network {name!r}")
    return UDN(layers, likelihood, depth, prior, GaussianWeights(scale), seed=seed)
