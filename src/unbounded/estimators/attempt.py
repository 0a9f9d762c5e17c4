"""A `fit` that fails leaves an estimator as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attempt(estimator: Any) -> Iterator[None]:
    """Take back what is set in the body if that raises: half of a fit would fit no model.

    The attributes themselves come back, so the body must replace rather than change them.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
