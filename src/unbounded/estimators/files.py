"""Fitted estimators as files: the model's safetensors file with the rest in its header, as data."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from unbounded import files
from unbounded.devices import resolve_device
from unbounded.estimators.base import UDNEstimator
from unbounded.estimators.rows import Scaling
from unbounded.files import Contents, FileError
from unbounded.layers import Dense, ResidualConv
from unbounded.schema import (
    anything,
    choice,
    either,
    flag,
    list_of,
    mapping,
    optional,
    real,
    record,
    text,
    whole,
)
from unbounded.tables.encoding import Encoding
from unbounded.training import History

_PLAIN_ATTRIBUTES = ("best_epoch", "n_iter", "stopped", "n_rows_seen")  # without the last _

_AUTO = either(choice("auto"), whole(1))
_SINGLE = either(choice(None), flag, text(1000), whole(-(2**63)), real())
_VALUE = either(_SINGLE, list_of(_SINGLE))
_NUMBER = either(whole(0), lambda value, where: value if _is_odd(value) else real()(value, where))
# What tables and pages show of an epoch; a callback may have added more.
_COUNTS = ("epoch", "step", "max_depth", "num_layers")
_TERMS = ("seconds", "elbo", "expected_log_lik", "depth_kl", "weight_kl", "depth_mean")
_EPOCH = record(
    {**dict.fromkeys(_COUNTS, whole(0)), **dict.fromkeys(_TERMS, _NUMBER)},
    others=optional(either(_NUMBER, text(1000), flag)),
)
_BIRTH = record({"epoch": whole(0), "depth": whole(1)}, others=optional(_NUMBER))
_HISTORY = record({"rows": list_of(_EPOCH), "births": list_of(_BIRTH)})
_DESCRIBED = record(
    {
        "kind": choice("UDNClassifier", "UDNRegressor"),
        "arguments": record(
            {
                "plain": mapping(anything),  # `_check_arguments` looks at them
                "parts": list_of(choice(*files.PARTS), most=len(files.PARTS)),
            }
        ),
        "n_features_in": whole(1),
        "feature_names_in": optional(list_of(text())),
        "input_scaling": anything,  # `Scaling.from_dict` looks at it
        "history": _HISTORY,
        "refit_history": optional(_HISTORY),
        "best_epoch": whole(0),
        "n_iter": whole(0),
        "stopped": text(1000),
        "n_rows_seen": whole(0),
    },
    {"encoding": optional(Encoding.from_dict)},  # files of earlier versions have none
    others=anything,  # the targets, of which the estimator itself knows
)


def _weights(value: Any, where: str) -> dict[Any, float]:
    """The weights of classes, from pairs: JSON has no keys but texts."""
    pairs = list_of(list_of(_SINGLE, least=2, most=2))(value, where)
    found = {key: real()(weight, where) for key, weight in pairs}
    if len(found) < len(pairs):
        raise FileError(f"the field {where} names a class twice")
    return found


_ARGUMENTS = {"epochs": _AUTO, "batch_size": _AUTO, "patience": optional(_AUTO)}
_ARGUMENTS |= {"n_members": _AUTO, "class_weight": either(choice(None), text(1000), _weights)}
_WHERE = "extra.estimator"


def save(estimator: UDNEstimator, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator to one safetensors file, atomically."""
    check_is_fitted(estimator)
    again, encoding = estimator.refit_history_, estimator.encoding_
    described: dict[str, Any] = {
        "kind": type(estimator).__name__,
        "arguments": _arguments(estimator),
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": list(getattr(estimator, "feature_names_in_", [])) or None,
        "encoding": None if encoding is None else encoding.to_dict(),
        "input_scaling": estimator.input_scaling_.to_dict(),
        "history": vars(estimator.history_),
        "refit_history": None if again is None else vars(again),
        **{name: getattr(estimator, f"{name}_") for name in _PLAIN_ATTRIBUTES},
        **estimator._describe_targets(),
    }
    extra = {**(extra or {}), "estimator": described}
    files.save(estimator.model_, path, extra=extra, siblings=estimator.members_[1:])


def holds_estimator(contents: Contents) -> bool:
    """Whether a model's file is one of an estimator, by the kind that it names."""
    described = contents.extra.get("estimator")
    kind = described.get("kind") if isinstance(described, dict) else None
    return kind in ("UDNClassifier", "UDNRegressor")


def load(path: str | Path | Contents, *, device: Any = "auto", **parts: Any) -> Any:
    """Read a fitted estimator of either kind, with parts of your own as in `unbounded.load`.

    Args:
        path: the file, which is opened once, or its contents as `unbounded.files.read` gives them.
        device: where the model goes.
        parts: of your own.

    Raises:
        FileError: if the file is not one of an estimator, or not whole.
    """
    from unbounded.estimators import UDNClassifier, UDNRegressor

    kinds: dict[str, Any] = {cls.__name__: cls for cls in (UDNClassifier, UDNRegressor)}
    contents = files.read(path)
    if not holds_estimator(contents):
        raise FileError(
            f"{contents.label} holds a model, but not one of an estimator: use unbounded.load"
        )
    with files.rebuilding(contents, "does not describe an estimator this version can build"):
        described = _DESCRIBED(contents.extra["estimator"], _WHERE)
        estimator = kinds[described["kind"]]()
        arguments = described["arguments"]
        arguments["plain"] = _check_arguments(arguments["plain"], estimator)
    members = files.load_all(contents, device=resolve_device(device), **parts)
    with files.rebuilding(contents, "does not describe an estimator this version can build"):
        _fill(estimator, described, members, device)
    return estimator


def _fill(estimator: Any, described: dict[str, Any], members: list[Any], device: Any) -> None:
    """Make a new estimator the one that was described, of these models."""
    model, arguments = members[0], described["arguments"]
    estimator.set_params(
        **arguments["plain"],
        # Parts that were given are what the model has now.
        **{name: _given(model, name) for name in arguments["parts"]},
        device=device,
    )
    estimator.model_, estimator.members_ = model, members
    estimator._optimizers, estimator._apart = None, len(members) > estimator._count
    columns = described["n_features_in"]
    encoding = estimator.encoding_ = described.get("encoding")
    if encoding is not None and len(encoding.columns) != columns:
        raise FileError(f"the field {_WHERE}.encoding should be of {columns} columns")
    width = columns if encoding is None else len(encoding.feature_names)
    _check_inputs(model.layers, width)
    if described["best_epoch"] > max(described["n_iter"], len(described["history"]["rows"])):
        raise FileError(f"the field {_WHERE}.best_epoch is beyond the last epoch")
    estimator.n_features_in_ = columns
    names = described["feature_names_in"]
    if names is not None:
        if len(names) != columns or len(set(names)) != columns:
            raise FileError(f"the field {_WHERE}.feature_names_in should be {columns} names")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    estimator.input_scaling_ = Scaling.from_dict(
        described["input_scaling"], width, f"{_WHERE}.input_scaling"
    )
    estimator.history_ = History(**described["history"])
    again = described["refit_history"]
    estimator.refit_history_ = again and History(**again)
    for name in _PLAIN_ATTRIBUTES:
        setattr(estimator, f"{name}_", described[name])
    estimator._rebuild_targets(described, _WHERE)


def _given(model: Any, part: str) -> Any:
    """A part as the estimator was given it: of members that share a network, that of one."""
    return model.likelihood.single if part == "likelihood" else getattr(model, part)


def _check_arguments(plain: dict[str, Any], estimator: UDNEstimator) -> dict[str, Any]:
    """Arguments of the constructor, each with a value that it could have had."""
    known = set(estimator.get_params(deep=False)) - {*files.PARTS, "device"}
    found = {}
    for name, value in plain.items():
        where = f"{_WHERE}.arguments.plain.{name[:60]}"
        if name not in known:
            raise FileError(f"the field {where} is not known to this version")
        found[name] = _ARGUMENTS.get(name, _VALUE)(value, where)
    return found


def _check_inputs(layers: Any, columns: int) -> None:
    """Built-in layers must take the rows of a table of so many columns."""
    if isinstance(layers, ResidualConv):
        raise FileError("its layers are for images, an estimator has rows of a table")
    if isinstance(layers, Dense) and layers.in_features != columns:
        raise FileError(f"its first layer takes {layers.in_features} numbers, a row has {columns}")


def _is_odd(value: Any) -> bool:
    """Whether it is one of the numbers that JSON has no word for: a loss that was not finite."""
    return isinstance(value, float) and (value != value or value in (np.inf, -np.inf))


def _arguments(estimator: UDNEstimator) -> dict[str, Any]:
    """The constructor's arguments as plain data, and the names of the parts given.

    What a file cannot hold, such as a generator of random numbers, is left out with a warning.
    """
    values = estimator.get_params(deep=False)
    parts = [name for name in files.PARTS if values.pop(name) is not None]
    values.pop("device")
    plain = {}
    for name, value in values.items():
        found = _plain(value)
        try:
            _ARGUMENTS.get(name, _VALUE)(found, name)
        except FileError:
            default = type(estimator)().get_params(deep=False)[name]
            told = f"a file cannot hold this {name}, a {type(value).__name__}"
            warnings.warn(f"{told}: it will be {default!r} when it is read", stacklevel=4)
        else:
            plain[name] = found
    return {"plain": plain, "parts": parts}


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as Python's, tuples as lists, and dicts as lists of pairs."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    return value
