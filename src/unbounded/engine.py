"""Names of earlier versions, with a warning: `fit` trains many models too."""

import warnings
from collections.abc import Sequence
from typing import Any

from unbounded.engines import Stacked
from unbounded.model import UDN
from unbounded.training import FitResult, fit


def fit_population(models: Sequence[UDN], data: Any, **arguments: Any) -> list[FitResult]:
    """`unbounded.fit` of a list of models."""
    warnings.warn(
        "fit_population is unbounded.fit with a list of models", DeprecationWarning, stacklevel=2
    )
    arguments.pop("workers", None)
    chosen = {n: arguments.pop(n) for n in ("device", "graphs", "spare") if n in arguments}
    if "seeds" in arguments:
        arguments["seed"] = arguments.pop("seeds")
    return fit(list(models), data, engine=Stacked(**chosen), **arguments)
