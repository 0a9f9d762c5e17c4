"""A model file that is replaced every 2 ms while it is read: each read is one whole model."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attack import fixtures, pool
from unbounded.tables import TableModel

PAUSE = 0.002


class Replaced:
    """Reads of a file that two models take turns in."""

    def __init__(self, folder: Path):
        self.path = folder / "replaced.udn"
        self.rows = fixtures.frame().iloc[:5]
        # Of different widths and encodings, so that a mixture of the two cannot go unnoticed.
        models = [fixtures.table_model(seed=0), fixtures.table_model(seed=1, width=12, drop=("b",))]
        self.contents = [fixtures.written(model, self.path) for model in models]
        self.expected = [model.predict(self.rows).to_numpy() for model in models]
        self.described = [_description(model) for model in models]
        self._writer: Any = None

    def __enter__(self) -> "Replaced":
        self._writer = pool.start(self._replace)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.kill()
        self._writer.join()

    def _replace(self) -> None:
        fresh = self.path.with_name("next.udn")
        turn = 0
        while True:
            fresh.write_bytes(self.contents[turn % 2])
            os.replace(fresh, self.path)
            turn += 1
            time.sleep(PAUSE)

    def case(self, number: int) -> str:
        """One read."""
        model = TableModel.load(self.path, "cpu")
        found, described = model.predict(self.rows).to_numpy(), _description(model)
        for expected, words in zip(self.expected, self.described, strict=True):
            if np.array_equal(found, expected) and words == described:
                return ""
        return "mixed: the predictions are of neither model"


def _description(model: TableModel) -> Any:
    shapes = [tuple(p.shape) for p in model.estimator.model_.parameters()]
    used = [c.name for c in model.encoding.columns if c.is_used]
    return model.info["seed"], shapes, used
