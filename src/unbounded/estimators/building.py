"""From the arguments of an estimator to an untrained model."""

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.devices import one_thread, resolve_device
from unbounded.estimators.nested import arguments, as_classes
from unbounded.estimators.pace import quality
from unbounded.estimators.rows import (
    Array,
    Scaling,
    WeightedRows,
    is_classes,
    knots,
    merge,
    numbers,
)
from unbounded.estimators.thresholds import find_thresholds
from unbounded.files import PARTS
from unbounded.layers import Layers, TableDense
from unbounded.likelihoods import Likelihood, Members
from unbounded.likelihoods.members import MOST
from unbounded.model import UDN
from unbounded.training import preset

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

_MOST_ROWS = 20_000  # more say no more of where quantiles are
_SMALL = 2**17  # numbers in a hidden state of a batch, up to which a second thread gains nothing

ENSEMBLES = ("deep", "shared")
"""Networks of their own, or one whose layers the members share."""


def check_arguments(estimator: "UDNEstimator") -> None:
    """A ValueError that names the first argument of training that cannot be."""
    words = {"validation_fraction": (), "time_limit": (None,), "lr": ("auto",)}
    for name, allowed in words.items():
        value = getattr(estimator, name)
        if isinstance(value, bool) or not (isinstance(value, Real) or _is_one(value, allowed)):
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
    others |= {"width": ()}
    for name, allowed in others.items():
        value = getattr(estimator, name)
        if _is_one(value, allowed):
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            auto_or = "'auto' or " if allowed else ""
            raise ValueError(f"{name} must be {auto_or}an integer from 1, got {value!r}")
    selects = ("auto", "log_score", "score")
    if not _is_one(estimator.select, selects):
        raise ValueError(f"select must be one of {selects}, got {estimator.select!r}")
    if not isinstance(estimator.likelihood, Likelihood | None):
        raise ValueError(f"likelihood must be None or a Likelihood, got {estimator.likelihood!r}")
    check_ensemble(estimator)


def _is_one(value: Any, allowed: tuple[str | None, ...]) -> bool:
    """Whether a value is one of these words; arrays, which have no one answer, are none."""
    return (value is None or isinstance(value, str)) and value in allowed


def check_ensemble(estimator: "UDNEstimator") -> None:
    """A ValueError if there is no such ensemble, or none of such layers."""
    if not _is_one(estimator.ensemble, ENSEMBLES):
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


def evaluation_rows(estimator: "UDNEstimator", eval_set: Any) -> WeightedRows:
    """The rows of an `eval_set`, as training takes them."""
    pair = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError("eval_set must be a pair (X, y)")
    if all(isinstance(part, tuple) and len(part) == 2 for part in pair):
        raise ValueError("eval_set must be a pair (X, y), got two pairs: put them together")
    X, y = pair
    try:
        x, y = estimator._check(X, y, reset=False, min_rows=1)
        y = estimator._coded(y)
    except ValueError as error:
        raise ValueError(f"eval_set: {error}") from None
    return merge(x, y, np.ones(len(x)))


def threads(estimator: "UDNEstimator", model: UDN, batch_size: int) -> AbstractContextManager[None]:
    """One thread where steps are small: with little to do threads wait for each other.

    Beside other work they wait for very long.
    """
    states = batch_size * model.likelihood.count
    return one_thread() if states * estimator.width <= _SMALL else nullcontext()


def made_with(estimator: "UDNEstimator") -> dict[str, Any]:
    """What a network is made of by the arguments, to be compared with later ones.

    Of `width` and the members the network itself tells.
    """
    parts = {name: _described(getattr(estimator, name)) for name in PARTS}
    return {"preset": estimator.preset, **parts}


def _described(part: Any) -> Any:
    """A part as its type and arguments; plain values as they are written."""
    if part is None or isinstance(part, bool | int | float | str | list | tuple | dict):
        return repr(part)
    known = arguments(part)
    return type(part).__qualname__, {name: _described(value) for name, value in known.items()}


def check_members(estimator: "UDNEstimator") -> None:
    """A ValueError if the models that are trained on are not what the arguments say now."""
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
    # A file does not tell what the parts were before training.
    before = getattr(estimator, "_made_with", None) or made_with(estimator)
    other = [name for name, value in made_with(estimator).items() if value != before[name]]
    if other:
        raise ValueError(
            f"warm_start trains a network on that was made with another {other[0]}: leave it as "
            "it was, or set warm_start to False for a new network"
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
    estimator: "UDNEstimator",
    x: Array,
    size: int,
    seed: int,
    columns: dict[str, Any],
    validates: bool,
) -> UDN:
    """A model for rows `x` and `size` classes or targets.

    `columns` is what `shown` gives. Classes begin with few layers where held-out rows are there to
    add some (`validates`).
    """
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
        recipe.start(validates and as_classes(estimator))
        if estimator.depth is None
        else copy.deepcopy(estimator.depth),
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
