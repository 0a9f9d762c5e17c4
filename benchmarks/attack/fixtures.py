"""Small models, tables and files that the attacks work on, made once."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import unbounded as ub
from unbounded.tables import TableModel

ROWS = 60


@cache
def frame(kind: str = "number", rows: int = ROWS, seed: int = 0) -> Any:
    """A table of numbers, a category, a date and gaps, with a target."""
    import pandas as pd

    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, rows))
    city = random.choice(["Rome", "Oslo", "007", "7"], rows)
    y = a - 0.5 * b + 0.1 * random.normal(size=rows) + (city == "Rome")
    target = y if kind == "number" else np.where(y > 0.5, "yes, it is", "no")
    if kind == "classes":
        target = np.where(y < -0.5, "1.10", target)
    table = pd.DataFrame({"a": a, "b": b, "city": city, "y": target})
    table["day"] = pd.date_range("2021-01-01", periods=rows).strftime("%Y-%m-%d")
    table.loc[::7, "b"] = np.nan
    return table


@cache
def table_model(kind: str = "number", seed: int = 0, **options: Any) -> TableModel:
    """A model of that table, trained for a moment."""
    short = {"epochs": 3, "width": 8, "references": False, **options}
    return TableModel.fit(frame(kind), "y", seed=seed, device="cpu", **short)


@cache
def estimator(kind: str = "number", members: int = 1) -> Any:
    """A fitted estimator."""
    x, y = points(kind)
    cls = ub.UDNRegressor if kind == "number" else ub.UDNClassifier
    options = {"width": 8, "epochs": 3, "n_members": members, "random_state": 0, "device": "cpu"}
    return cls(**options).fit(x, y)


@cache
def points(kind: str = "number", rows: int = ROWS) -> tuple[Any, Any]:
    """Rows of numbers, and a target."""
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = x[:, 0] * x[:, 1]
    return x, y if kind == "number" else np.where(y > 0, "up", "down")


def written(model: Any, path: Path) -> bytes:
    """The bytes of a model's file."""
    model.save(path)
    return path.read_bytes()
