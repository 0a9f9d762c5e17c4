"""The one way to import a package that an extra brings."""

import importlib
from typing import Any


def imported(module: str, extra: str) -> Any:
    """The module, or an ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"this needs the package {package}: pip install 'unbounded[{extra}]'"
        ) from error
