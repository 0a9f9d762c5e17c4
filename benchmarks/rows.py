"""`python -m benchmarks.rows`: one row at a time, beside scikit-learn's MLPRegressor.

Both have their defaults and are fitted to the same table of 13 columns; one thread. A call takes
in what users wait for: the checks of the input as well. The best of many calls is shown, and its
ratio to that of `MLPRegressor.predict`.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from benchmarks.timing import best_times
from unbounded import UDNClassifier, UDNRegressor

COLUMNS, ROWS = 13, 500


def calls(rounds: int = 0, **options: Any) -> dict[str, Callable[[], object]]:
    """What is timed, by name, the reference first.

    Args:
        rounds: epochs of the reference; 0 for its default.
        options: of our estimators.
    """
    import pandas as pd

    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = X @ rng.standard_normal(COLUMNS) + np.sin(3 * X[:, 0])
    names = [f"column {place}" for place in range(COLUMNS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reference = MLPRegressor(random_state=0, **({"max_iter": rounds} if rounds else {}))
        reference.fit(X, y)
    numbers = UDNRegressor(random_state=0, **options).fit(X, y)
    named = UDNRegressor(random_state=0, **options).fit(pd.DataFrame(X, columns=names), y)
    classes = UDNClassifier(random_state=0, **options).fit(X, y > 0)
    # After one epoch q is still as wide as it began.
    wide = UDNRegressor(random_state=0, **{**options, "epochs": 1}).fit(X, y)
    row = X[:1].copy()
    frame = pd.DataFrame(row, columns=names)
    return {
        "MLPRegressor.predict": lambda: reference.predict(row),
        "UDNRegressor.predict": lambda: numbers.predict(row),
        "  with standard deviation": lambda: numbers.predict(row, return_std=True),
        "  of a frame": lambda: named.predict(frame),
        f"  of {wide.max_depth_} depths, not {numbers.max_depth_}": lambda: wide.predict(row),
        "UDNClassifier.predict": lambda: classes.predict(row),
        "UDNClassifier.predict_proba": lambda: classes.predict_proba(row),
    }


def main() -> int:
    torch.set_num_threads(1)
    found = calls()
    times = best_times(list(found.values()), rounds=500)
    print(f"{'one row of ' + str(COLUMNS) + ' columns':30} {'milliseconds':>12} {'ratio':>6}")
    for name, seconds in zip(found, times, strict=True):
        print(f"{name:30} {1e3 * seconds:12.3f} {seconds / times[0]:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
