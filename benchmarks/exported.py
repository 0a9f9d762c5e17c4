"""`python -m benchmarks.exported`: one row at a time by an exported file, beside our own way.

A table of numbers, a category and a date, with defaults; and plain numbers of an estimator. One
thread, as in `benchmarks.rows`. A call takes in what users wait for. ONNX is run by onnxruntime
with all outputs of the file; the last column says how many times as fast it is as our own.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unbounded as ub
from benchmarks.timing import best_times
from unbounded import UDNClassifier, UDNRegressor
from unbounded.exporting.columns import Columns, frame_columns
from unbounded.tables import TableModel

Call = Callable[[], object]
ROWS = 500


def session(path: Path) -> Any:
    """A file, ready to run in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def calls(folder: Path, **options: Any) -> dict[str, tuple[Call, Call]]:
    """Pairs of our own prediction and the file's, by name.

    Args:
        folder: for the files.
        options: of the estimators.
    """
    import pandas as pd

    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, 13))
    y = X @ rng.standard_normal(13) + np.sin(3 * X[:, 0])
    frame = pd.DataFrame(X[:, :11], columns=[f"column {k}" for k in range(11)])
    frame["town"] = rng.choice(["Bonn", "Bern", "Rome"], ROWS)
    frame["day"] = pd.date_range("2021-01-01", periods=ROWS, freq="D")
    frame["target"] = y
    fitted = TableModel.fit(frame, target="target", references=False, **options)
    number = UDNRegressor(random_state=0, **options).fit(X, y)
    classes = UDNClassifier(random_state=0, **options).fit(X, y > 0)
    found: dict[str, tuple[Call, Call]] = {}

    def add(name: str, model: Any, ours: Call, feeds: Any, **chosen: Any) -> None:
        path = folder / f"{len(found)}.onnx"
        done = ub.export(model, path, **chosen)
        run = session(path)
        feeds = feeds(done) if callable(feeds) else feeds
        found[name] = ours, lambda: run.run(None, feeds)

    row, one = X[:1].copy(), frame[:1]
    chunk = next(iter(fitted.open(one).chunks())).frame
    inputs = Columns(fitted.encoding).inputs
    columns = frame_columns(fitted.encoding, inputs, chunk, as_codes=False)
    quantiles = (0.05, 0.95)
    add(
        "a table: mean, sd, interval",
        fitted,
        lambda: fitted.predict(one),
        columns,
        quantiles=quantiles,
    )
    add(
        "numbers: mean, sd",
        number,
        lambda: number.predict(row, return_std=True),
        {"x": row},
        quantiles=(),
    )

    def with_quantiles() -> object:
        return number.predict(row, return_std=True), number.predict_quantiles(row, quantiles)

    add("numbers: mean, sd, quantiles", number, with_quantiles, {"x": row}, quantiles=quantiles)
    add("classes: probabilities", classes, lambda: classes.predict_proba(row), {"x": row})
    return found


def ratios(
    found: dict[str, tuple[Call, Call]], rounds: int = 300
) -> dict[str, tuple[float, float]]:
    """Seconds of ours and of the file's, by name."""
    times = best_times([call for pair in found.values() for call in pair], rounds)
    return {name: (times[2 * k], times[2 * k + 1]) for k, name in enumerate(found)}


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = ratios(calls(Path(folder)))
    print(f"{'one row':32} {'ours, ms':>10} {'ONNX, ms':>10} {'times':>7}")
    for name, (ours, theirs) in found.items():
        print(f"{name:32} {1e3 * ours:10.3f} {1e3 * theirs:10.3f} {ours / theirs:7.1f}")
    return 0 if all(ours >= 2 * theirs for ours, theirs in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
