"""From the arguments of an estimator to an untrained model."""

import copy
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from unbounded.devices import resolve_device
from unbounded.estimators.pace import quality
from unbounded.estimators.rows import Array, Scaling, WeightedRows, is_classes, knots, numbers
from unbounded.estimators.thresholds import find_thresholds
from unbounded.layers import Layers, TableDense
from unbounded.likelihoods import Members
from unbounded.likelihoods.members import MOST
from unbounded.model import UDN
from unbounded.training import preset

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

_MOST_ROWS = 20_000  # more say no more of where quantiles are

ENSEMBLES = ("deep", "shared")
"""Networks of their own, or one whose layers the members share."""


def check_arguments(estimator: "UDNEstimator") -> None:
    """A ValueError that names the first argument of training that cannot be."""
    words = {"validation_fraction": (), "time_limit": (None,), "lr": ("auto",)}
    for name, allowed in words.items():
        value = getattr(estimator, name)
        if isinstance(value, bool) or not (isinstance(value, Real) or value in allowed):
            raise ValueError(f"{name} must be a number, got {value!r}")
    fraction, seconds = estimator.validation_fraction, estimator.time_limit
    if not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), got {fraction}")
    preset(estimator.preset)
    resolve_device(estimator.device)
    quality(estimator.quality)
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"time_limit must be None or positive, got {seconds}")
    auto = ("auto",)
    others = {"epochs": auto, "batch_size": auto, "patience": (*auto, None), "n_members": auto}
    for name, allowed in others.items():
        value = getattr(estimator, name)
        if value in allowed:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be 'auto' or an integer from 1, got {value!r}")
    check_ensemble(estimator)


def check_ensemble(estimator: "UDNEstimator") -> None:
    """A ValueError if there is no such ensemble, or none of such layers."""
    if estimator.ensemble not in ENSEMBLES:
        raise ValueError(f"ensemble must be one of {ENSEMBLES}, got {estimator.ensemble!r}")
    if estimator.ensemble != "shared":
        return
    if estimator.layers is not None or preset(estimator.preset).layers is not TableDense:
        raise ValueError(
            "ensemble='shared' has layers of its own: leave layers at None and preset at 'tables', "
            "or take ensemble='deep'"
        )
    if estimator.n_members != "auto" and estimator.n_members > MOST:
        raise ValueError(
            f"n_members: at most {MOST} can share a network, got {estimator.n_members}"
        )


def check_members(estimator: "UDNEstimator") -> None:
    """A ValueError if the models that are trained on are of another ensemble or width."""
    found = [model.likelihood.count for model in estimator.members_]
    shared = estimator.ensemble == "shared"
    wanted = [estimator._sharing] if shared else [1] * estimator._count
    if found != wanted:
        raise ValueError(
            f"warm_start trains {sum(found)} members on, n_members is {sum(wanted)} "
            f"and ensemble {estimator.ensemble!r}"
        )
    width = getattr(estimator.model_.layers, "width", estimator.width)
    if estimator.layers is None and width != estimator.width:
        raise ValueError(
            f"warm_start trains a network of width {width} on, width is {estimator.width}"
        )


def shown(estimator: "UDNEstimator", rows: WeightedRows, scaling: Scaling) -> dict[str, Any]:
    """What the first layer of the preset "tables" is told of the columns, seen through `scaling`.

    Numbers get ramps between quantiles. Classes get steps, at thresholds where they change, and
    Mish: SiLU, which is cheaper, was no better there (docs/tables.md).
    """
    recipe = preset(estimator.preset)
    if estimator.layers is not None or recipe.layers is not TableDense:
        return {}
    columns = recipe.embeds(numbers(rows.x))
    if is_classes(rows.y):
        steps = find_thresholds(rows, scaling, columns)
        return {"embedded": columns, "steps": steps, "activation": "mish"}
    places: list[list[float]] = []
    if recipe.ramps and columns:
        sample = scaling.apply(rows.x[:: -(-len(rows.x) // _MOST_ROWS)])
        places = knots(sample, columns, recipe.ramps)
    return {"embedded": columns, "knots": places}


def build(
    estimator: "UDNEstimator", x: Array, size: int, seed: int, columns: dict[str, Any]
) -> UDN:
    """A model for rows `x` and `size` classes or targets; `columns` is what `shown` gives."""
    likelihood = copy.deepcopy(estimator.likelihood)
    if likelihood is None:
        likelihood = estimator._default_likelihood(size)
    layers = _layers(estimator, x, likelihood.num_outputs(size), columns)
    if estimator.ensemble == "shared":
        likelihood = Members(likelihood, estimator._sharing)
    recipe = preset(estimator.preset)
    model = UDN(
        layers,
        likelihood,
        # Copies: training moves λ, and the arguments stay as they were given.
        recipe.family() if estimator.depth is None else copy.deepcopy(estimator.depth),
        copy.deepcopy(estimator.depth_prior),
        copy.deepcopy(estimator.weight_prior),
        seed=seed,
    )
    return model.to(resolve_device(estimator.device))


def _layers(
    estimator: "UDNEstimator", x: Array, out_features: int, columns: dict[str, Any]
) -> Layers:
    in_features, given = x.shape[1], estimator.layers
    if given is None:
        members = estimator._sharing if estimator.ensemble == "shared" else None
        recipe = preset(estimator.preset)
        return recipe.built(in_features, estimator.width, out_features, members, **columns)
    if isinstance(given, Layers):
        return given
    if not callable(given):
        raise ValueError(
            "layers must be a Layers or a callable (in_features, out_features) -> Layers, "
            f"got {type(given).__name__}"
        )
    return given(in_features, out_features)
