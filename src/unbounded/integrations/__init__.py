"""The tools that people have already: loggers, progress bars, searches and training loops.

Each needs its package, an extra of the same name, which is imported when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from unbounded.training.callbacks import Logger as Logger
from unbounded.training.callbacks import TensorBoard as TensorBoard

if TYPE_CHECKING:
    from unbounded.integrations.accelerate import prepare as prepare
    from unbounded.integrations.lightning import UDNModule as UDNModule
    from unbounded.integrations.loggers import LogTo as LogTo
    from unbounded.integrations.loggers import MLflow as MLflow
    from unbounded.integrations.optuna import Pruning as Pruning
    from unbounded.integrations.rich import RichProgress as RichProgress

_LAZY = {
    "LogTo": "loggers",
    "MLflow": "loggers",
    "Pruning": "optuna",
    "RichProgress": "rich",
    "UDNModule": "lightning",
    "prepare": "accelerate",
}

if not TYPE_CHECKING:  # a type checker would take this as leave to use any name

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
            value = globals()[name] = getattr(module, name)
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})
