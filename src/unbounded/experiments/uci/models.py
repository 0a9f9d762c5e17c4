"""What is compared: the UDN, finite networks, DUN, and ensembles of them."""

from dataclasses import dataclass

from unbounded.depth import DepthFamily, FiniteDepth, FixedDepth, TruncatedPoisson
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
    **{name: f"f{name[1:]}, finite" for name in FINITE},
    "dun": "DUN (dense, shared head)",
    "deep-ensemble": f"{MEMBERS} × finite",
    "udn-ensemble": f"{MEMBERS} × UDN",
}
"""The models of the study, in their order, and what tables call them."""


@dataclass(frozen=True)
class Ensemble:
    """Equal networks with different seeds, whose mixtures are averaged.

    Attributes:
        of: the networks that it may be made of; if several, each split has those which do best
            on its validation parts.
    """

    of: tuple[str, ...]


ENSEMBLES = {"deep-ensemble": Ensemble(FINITE), "udn-ensemble": Ensemble(("udn",))}


def single_models(models: list[str]) -> list[str]:
    """The networks that these models are made of, in the order of `LABELS`."""
    needed = {name for model in models for name in _parts(model)}
    return [name for name in LABELS if name in needed]


def _parts(model: str) -> tuple[str, ...]:
    return ENSEMBLES[model].of if model in ENSEMBLES else (model,)


def architecture(name: str) -> str:
    """Networks of one architecture can be trained as one population."""
    return "shared head" if name == "dun" else "head for each depth"


def build(name: str, in_features: int, scale: float, recipe: Recipe, seed: int) -> UDN:
    """A new network.

    Args:
        name: "udn", "f2" … "f6" or "dun".
        in_features: how many inputs there are.
        scale: s of the prior on its weights.
        recipe: the rest.
        seed: of its first weights.
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
    if name == "udn":
        depth = TruncatedPoisson(recipe.rate)
    elif name == "dun":
        depth, prior = FiniteDepth(DUN_DEPTHS), UniformDepth(DUN_DEPTHS)
    elif name in FINITE:
        depth = FixedDepth(int(name[1:]))
    else:
        raise ValueError(f"there is no network {name!r}")
    return UDN(layers, likelihood, depth, prior, GaussianWeights(scale), seed=seed)
