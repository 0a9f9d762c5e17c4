"""Fitted estimators as files: the model's safetensors file with the rest in its header, as data."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from unbounded import files
from unbounded.estimators.base import UDNEstimator, resolve_device
from unbounded.estimators.rows import Scaling
from unbounded.files import FileError
from unbounded.training import History

_PLAIN = bool | int | float | str | None
_PLAIN_ATTRIBUTES = ("best_epoch", "n_iter", "stopped", "n_rows_seen")  # without the last _


def save(estimator: UDNEstimator, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator to one safetensors file, atomically."""
    check_is_fitted(estimator)
    again = estimator.refit_history_
    described: dict[str, Any] = {
        "kind": type(estimator).__name__,
        "arguments": _arguments(estimator),
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": list(getattr(estimator, "feature_names_in_", [])) or None,
        "input_scaling": estimator.input_scaling_.to_dict(),
        "history": vars(estimator.history_),
        "refit_history": None if again is None else vars(again),
        **{name: getattr(estimator, f"{name}_") for name in _PLAIN_ATTRIBUTES},
        **estimator._describe_targets(),
    }
    extra = {**(extra or {}), "estimator": described}
    files.save(estimator.model_, path, extra=extra, siblings=estimator.members_[1:])


def load(path: str | Path, *, device: Any = "auto", **parts: Any) -> Any:
    """Read a fitted estimator of either kind, with parts of your own as in `unbounded.load`.

    Raises:
        FileError: if the file is not one of an estimator, or not whole.
    """
    from unbounded.estimators import UDNClassifier, UDNRegressor

    kinds: dict[str, Any] = {cls.__name__: cls for cls in (UDNClassifier, UDNRegressor)}
    described = files.read_header(path).get("extra", {}).get("estimator")
    if not isinstance(described, dict) or described.get("kind") not in kinds:
        raise FileError(f"{path} holds a model, but not one of an estimator: use unbounded.load")
    members = files.load_all(path, device=resolve_device(device), **parts)
    model = members[0]
    with files.rebuilding(path, "does not describe an estimator this version can build"):
        estimator = kinds[described["kind"]]()
        arguments = described["arguments"]
        estimator.set_params(
            **arguments["plain"],
            # Parts that were given are what the model has now.
            **{name: getattr(model, name) for name in arguments["parts"]},
            device=device,
        )
        estimator.model_, estimator.members_ = model, members
        estimator._optimizer = None
        estimator.n_features_in_ = int(described["n_features_in"])
        if described["feature_names_in"]:
            estimator.feature_names_in_ = np.array(described["feature_names_in"], dtype=object)
        scaling = Scaling.from_dict(described["input_scaling"], estimator.n_features_in_)
        estimator.input_scaling_ = scaling
        estimator.history_ = History(**described["history"])
        again = described["refit_history"]
        estimator.refit_history_ = again and History(**again)
        for name in _PLAIN_ATTRIBUTES:
            setattr(estimator, f"{name}_", described[name])
        estimator._rebuild_targets(described)
    return estimator


def _arguments(estimator: UDNEstimator) -> dict[str, Any]:
    """The constructor's arguments that are plain data, and the names of the parts given."""
    values = estimator.get_params(deep=False)
    parts = [name for name in files.PARTS if values.pop(name) is not None]
    values.pop("device")
    return {"plain": {k: v for k, v in values.items() if isinstance(v, _PLAIN)}, "parts": parts}
