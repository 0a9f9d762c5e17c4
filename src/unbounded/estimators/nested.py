"""Arguments of an estimator's parts by name, `depth__spread=2.0`, for scikit-learn's searches.

The family q(ℓ), the priors and the likelihood know nothing of scikit-learn: what a part was made
with is read from its configuration and its attributes, and another value makes a new part.
"""

import inspect
from typing import Any, Self

from sklearn.base import BaseEstimator, is_classifier

from unbounded.files import PARTS
from unbounded.training import preset

_ABSENT = object()


class NestedParameters(BaseEstimator):
    """An estimator whose parts' arguments can be read and set by name."""

    preset: str
    layers: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments; with `deep` those of the parts as well: `depth__rate`, …"""
        found: dict[str, Any] = super().get_params(deep=deep)
        for part in PARTS if deep else ():
            if found[part] is not None:
                known = arguments(found[part])
                found |= {f"{part}__{name}": value for name, value in known.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set arguments; `depth__rate=2.0` puts such a family in the place of the one there is.

        Where `depth` is None, it is the preset's family that gets other values.
        """
        inner: dict[str, dict[str, Any]] = {}
        for key in [key for key in params if key.partition("__")[0] in PARTS and "__" in key]:
            part, _, name = key.partition("__")
            inner.setdefault(part, {})[name] = params.pop(key)
        super().set_params(**params)
        for name, values in inner.items():
            found = getattr(self, name)
            if found is None and name == "depth":
                found = preset(self.preset).start(as_classes(self))
            setattr(self, name, replaced(found, name, values))
        return self


def as_classes(estimator: NestedParameters) -> bool:
    """Whether the preset's start and rule for classes are meant; own layers have their own."""
    return bool(is_classifier(estimator)) and estimator.layers is None


def arguments(part: Any) -> dict[str, Any]:
    """What the constructor of a part would take to make it as it is now; of a callable nothing."""
    if isinstance(part, type) or inspect.isroutine(part):
        return {}
    names = [
        name
        for name, one in inspect.signature(type(part).__init__).parameters.items()
        if name != "self" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    try:
        known = part.config()
    except (AttributeError, NotImplementedError):
        known = {}
    found = {name: known.get(name, _value(part, name)) for name in names}
    return {name: value for name, value in found.items() if value is not _ABSENT}


def _value(part: Any, name: str) -> Any:
    value = getattr(part, name, _ABSENT)
    if isinstance(value, float):  # λ is kept in single precision: as many digits as that has
        return float(f"{value:.7g}")
    return _ABSENT if inspect.ismethod(value) else value


def replaced(part: Any, name: str, values: dict[str, Any]) -> Any:
    """A new part with other values of some of its arguments.

    Args:
        part: as it is now.
        name: what the estimator calls it, for errors.
        values: by the names of the constructor's arguments.

    Raises:
        ValueError: if there is no such part or argument.
    """
    if part is None:
        raise ValueError(f"{name} is None: give a part first, then {name}__{next(iter(values))}")
    known = arguments(part)
    for key in values:
        if key not in known:
            has = ", ".join(known) or "none that can be set"
            raise ValueError(f"{name}: {type(part).__name__} has no argument {key!r}: it has {has}")
    return type(part)(**{**known, **values})
