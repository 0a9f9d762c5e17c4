"""The header of a model file, field by field, and the built-in parts that it can name."""

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch

from unbounded.depth import (
    FiniteDepth,
    FixedDepth,
    TruncatedConwayMaxwell,
    TruncatedNormal,
    TruncatedPoisson,
)
from unbounded.layers import (
    Dense,
    PreNormDense,
    ResidualConv,
    ResidualDense,
    TableDense,
    TransformerLayers,
    TrunkDense,
)
from unbounded.layers.convolutional import FORMS
from unbounded.layers.dense import ACTIVATIONS
from unbounded.layers.init import INITS
from unbounded.layers.kernels import MOST_NUMBERS
from unbounded.layers.transformer import POSITIONS
from unbounded.likelihoods import (
    BalancedGaussian,
    Bernoulli,
    Categorical,
    Gaussian,
    Members,
    MultiLabel,
    SmoothedCategorical,
    Tokens,
)
from unbounded.likelihoods.members import MOST
from unbounded.likelihoods.tokens import MIXES, SCORES
from unbounded.priors import GaussianWeights, GeometricDepth, PoissonDepth, UniformDepth
from unbounded.schema import (
    Check,
    FileError,
    anything,
    choice,
    flag,
    list_of,
    mapping,
    optional,
    real,
    record,
    text,
    whole,
    wrong,
)

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
}
_SIZE = whole(1)
_POSITIVE = real(math.nextafter(0, 1))
_PROBABILITY = real(math.nextafter(0, 1), math.nextafter(1, 0))
_SCALE = real(1e-70, 1e70)  # its squares and their quotients are numbers too
_SEED = whole(0, 2**128)
_STAGES = 32  # each doubles the channels
_FURTHEST, _LARGEST = 1e30, 20.0  # knots of a noise, and the logarithm of a factor there

_DENSE: Mapping[str, Check] = {
    "in_features": _SIZE,
    "width": _SIZE,
    "out_features": _SIZE,
    "activation": choice(*ACTIVATIONS),
    "init": choice(*INITS),
    "shares_head": flag,
}
_RATE: Mapping[str, Check] = {
    "quantile": real(0.5, math.nextafter(1, 0)),
    "limit": optional(_SIZE),
}
CONCENTRATION = real(1e-4, 1e12)
"""ν of a Conway–Maxwell family; below this its support would be of thousands of layers."""


def _by_kind(
    kinds: Mapping[str, Mapping[str, Check]],
    maybe: Mapping[str, Mapping[str, Check]] = MappingProxyType({}),
) -> Check:
    """An object whose field "kind" says which other fields it has, or may have."""

    def check(value: Any, where: str) -> dict[str, Any]:
        kind = value.get("kind") if isinstance(value, dict) else None
        fields = kinds.get(kind) if isinstance(kind, str) else None
        if fields is None:
            raise wrong(f"{where}.kind", "one of " + ", ".join(kinds), kind)
        checked: dict[str, Any] = record({"kind": text(), **fields}, maybe.get(str(kind)))(
            value, where
        )
        return checked

    return check


def _bend(value: Any, where: str) -> tuple[list[float], list[float]]:
    """Knots that ascend and as many values, a pair of lists."""
    checked = list_of(list_of(real(-_FURTHEST, _FURTHEST), least=2, most=64), least=2, most=2)
    knots, values = checked(value, where)
    if len(knots) != len(values) or any(a >= b for a, b in pairwise(knots)):
        raise wrong(where, "knots that ascend and as many values", value)
    if max(map(abs, values)) > _LARGEST:
        raise wrong(where, f"values of at most {_LARGEST:g}", value)
    return knots, values


_NOISE = _by_kind(
    {
        "FixedNoise": {"scale": _POSITIVE},
        "LearntNoise": {"num_targets": _SIZE},
        "InputNoise": {"floor": real(0)},
        "ScaledInputNoise": {"floor": real(0), "num_targets": _SIZE},
    },
    maybe={"LearntNoise": {"bends": list_of(optional(_bend))}},
)

_LIKELIHOODS: dict[Any, Mapping[str, Check]] = {
    Categorical: {"num_classes": whole(2)},
    SmoothedCategorical: {"num_classes": whole(2), "smoothing": real(0, math.nextafter(1, 0))},
    Bernoulli: {},
    MultiLabel: {"num_labels": _SIZE},
    Gaussian: {"noise": _NOISE},
    BalancedGaussian: {"beta": real(0, 1), "floor": real(0), "num_targets": _SIZE},
}
_MEMBERS: Mapping[str, Check] = {
    "each": _by_kind({cls.__name__: fields for cls, fields in _LIKELIHOODS.items()}),
    "count": whole(1, MOST),
}
_TABLE: Mapping[str, Check] = {
    **_DENSE,
    "embedded": list_of(whole(0)),
    "frequencies": _SIZE,
    "embedding": whole(2),
    "spread": _POSITIVE,
}


def _knots(value: Any, where: str) -> list[float]:
    """Two or more numbers that ascend."""
    numbers: list[float] = list_of(real(-_FURTHEST, _FURTHEST), least=2, most=1024)(value, where)
    if any(a >= b for a, b in pairwise(numbers)):
        raise wrong(where, "numbers that ascend", value)
    return numbers


# What files of earlier versions do not have. A threshold is a column and a number.
_SHAPES: Mapping[str, Check] = {
    "knots": list_of(_knots, most=1 << 16),
    "steps": list_of(list_of(real(), least=2, most=2)),
    "height": _POSITIVE,
    "head_knots": list_of(_knots, most=1 << 16),
    "head_rows": list_of(list_of(real(-_FURTHEST, _FURTHEST)), most=MOST_NUMBERS),
    "head_scales": list_of(real(0, _FURTHEST)),
}
_MAYBE: dict[Any, Mapping[str, Check]] = {
    TableDense: _SHAPES,
    TrunkDense: _SHAPES,
    ResidualConv: {"block": choice(*FORMS)},  # files of earlier versions have none
    TransformerLayers: {"dropout": real(0, math.nextafter(1, 0))},
}

# The only names that a file can ask for, and their arguments. A file never names a module or an
# import path.
_KNOWN: dict[str, dict[Any, Mapping[str, Check]]] = {
    "layers": {
        Dense: _DENSE,
        ResidualDense: {**_DENSE, "identity": flag},
        PreNormDense: _DENSE,
        TableDense: _TABLE,
        TrunkDense: {**_TABLE, "members": whole(1, MOST)},
        ResidualConv: {
            "in_channels": _SIZE,
            "out_features": _SIZE,
            "width": _SIZE,
            "stages": list_of(_SIZE, most=_STAGES),
            "strides": list_of(whole(1, 1024), most=_STAGES + 1),
            "init": choice(*ResidualConv.INITS),
        },
        TransformerLayers: {
            **dict.fromkeys(("vocabulary", "width", "heads", "out_features"), _SIZE),
            "causal": flag,
            "positions": choice(*POSITIONS),
            "max_length": optional(_SIZE),
            "expansion": _SIZE,
            "shares_head": flag,
            "tied": flag,
        },
    },
    "likelihood": {
        **_LIKELIHOODS,
        Members: _MEMBERS,
        Tokens: {"vocabulary": whole(2), "mix": choice(*MIXES), "score": choice(*SCORES)},
    },
    "depth": {
        TruncatedPoisson: _RATE,
        TruncatedConwayMaxwell: {**_RATE, "concentration": CONCENTRATION},
        TruncatedNormal: _RATE,
        FixedDepth: {"depth": _SIZE},
        FiniteDepth: {"max_depth": _SIZE},
    },
    "depth_prior": {
        PoissonDepth: {"rate": _POSITIVE},
        GeometricDepth: {"prob": _PROBABILITY},
        UniformDepth: {"max_depth": _SIZE},
    },
    "weight_prior": {GaussianWeights: {"scale": _SCALE, "posterior_scale": optional(_SCALE)}},
}
PARTS = tuple(_KNOWN)
"""What a model is made of: the parts of your own that `load` takes."""


def _part(part: str) -> Check:
    """A part as `describe` gives it; the arguments of one that is built in are checked."""
    known = {cls.__name__: record(fields, _MAYBE.get(cls)) for cls, fields in _KNOWN[part].items()}
    outer = record({"kind": text(1000), "config": optional(mapping(anything))})

    def check(value: Any, where: str) -> dict[str, Any]:
        described: dict[str, Any] = outer(value, where)
        if described["config"] is not None and described["kind"] in known:
            known[described["kind"]](described["config"], where)
        return described

    return check


_MEMBER: Mapping[str, Check] = {"num_layers": _SIZE, "seed": _SEED}
_HEADER = record(
    {
        "format": text(100),
        **_MEMBER,
        "dtype": choice(*DTYPES),
        "cumulative_heads": flag,
        "extra": mapping(anything),
        **{part: _part(part) for part in PARTS},
    },
    # Files of the first format have the siblings from some version on.
    {"siblings": list_of(record(_MEMBER), most=1 << 20), "version": text(100)},
)


def check_header(header: dict[str, Any]) -> dict[str, Any]:
    """The header of a model, if every field is what it should be; a FileError that names it."""
    checked: dict[str, Any] = {"siblings": [], **_HEADER(header, "")}
    return checked


def describe(part: str, value: Any) -> dict[str, Any]:
    """The name and arguments of a built-in part; only the name of a user's own."""
    if type(value) in _KNOWN[part]:
        try:
            return {"kind": type(value).__name__, "config": value.config()}
        except NotImplementedError:
            pass  # a built-in part that was given a callable
    return {"kind": type(value).__name__, "config": None}


def built_in(part: str) -> dict[str, type]:
    """The classes that a part can be of, by their names, but for a user's own."""
    return {cls.__name__: cls for cls in _KNOWN[part]}


def known_class(part: str, described: dict[str, Any]) -> Any:
    """The built-in class that a description names, with its arguments; else a FileError."""
    classes = built_in(part)
    kind = described["kind"]
    if kind not in classes or described["config"] is None:
        raise FileError(
            f"it was saved with a {part} of the user's own ({kind}): pass it as "
            f"load(path, {part}=…)"
        )
    return classes[kind]
