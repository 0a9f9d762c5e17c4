"""Loads and uses mutated model files; run as a program, a child with limited memory does it.

    python tests/attacked.py FOLDER COUNT SEED [NAME …]

FOLDER holds model files (.udn). Prints one JSON object: how many were loaded, refused, and what
should never be: raw errors, other numbers, slow ones.
"""

import json
import random
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unbounded as ub
from mutations import mutate_file
from unbounded import estimators, files
from unbounded.tables import TableModel

SLOW = 5.0


def kind_of(path: Path) -> str:
    """What a file is of: "table", "estimator" or "images" and "rows" for a plain model."""
    contents = files.read(path)
    for kind in ("table", "estimator"):
        if kind in contents.extra:
            return kind
    return "images" if contents.header["layers"]["kind"] == "ResidualConv" else "rows"


def use(path: Path, kind: str, rows: Any) -> list[Any]:
    """Load a file as what it was before and predict; the numbers that come out."""
    if kind == "table":
        from unbounded.tables.pages import model_page

        table_model = TableModel.load(path, "cpu")
        frame = table_model.predict(rows["table"], parts=True)
        model_page(table_model)
        table_model.describe()
        return [frame[name].to_numpy() for name in frame]
    if kind == "estimator":
        estimator = estimators.load(path, device="cpu")
        x = rows["x"]
        if isinstance(estimator, estimators.UDNClassifier):
            return [estimator.predict(x), estimator.predict_proba(x), estimator.predict_by_depth(x)]
        mean, std = estimator.predict(x, return_std=True)
        return [mean, std, estimator.predict_quantiles(x, [0.1, 0.9])]
    model = ub.load(path)
    x = torch.as_tensor(rows["x"], dtype=torch.float32)
    prediction = model.predict(x[..., None, None].expand(-1, -1, 8, 8) if kind == "images" else x)
    return [prediction.outputs.numpy(), prediction.depth_log_probs.numpy()]


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether the numbers agree bit for bit."""
    return len(one) == len(other) and all(
        a.shape == b.shape and np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


def attack(path: Path, count: int, seed: int, rows: Any, scratch: Path) -> dict[str, Any]:
    """Mutate one file many times; what became of it."""
    data, rng = path.read_bytes(), random.Random(f"{seed} {path.name}")
    kind = kind_of(path)
    expected = use(path, kind, rows)
    found: Counter[str] = Counter()
    bad: list[str] = []
    slowest, longest = 0.0, ""
    for _ in range(count):
        changed, what, resealed = mutate_file(data, rng)
        scratch.write_bytes(changed)
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numbers that overflow: the attacker's own
                numbers = use(scratch, kind, rows)
        except files.FileError as error:
            found["refused"] += 1
            if not str(error).startswith(str(scratch)):
                bad.append(f"{what}: no path in {str(error)[:200]}")
        except Exception as error:
            found["raw"] += 1
            bad.append(f"{what} ({resealed=}): raw {type(error).__name__}: {str(error)[:200]}")
        else:
            found["loaded"] += 1
            if not resealed and not same(numbers, expected):
                found["other"] += 1
                bad.append(f"{what}: other numbers")
        seconds = time.perf_counter() - start
        if seconds > slowest:
            slowest, longest = seconds, what
        if seconds > SLOW:
            found["slow"] += 1
            bad.append(f"{what}: {seconds:.1f} s")
    return {**found, "slowest": round(slowest, 2), "slowest_by": longest, "bad": bad[:20]}


def rows_for(folder: Path) -> dict[str, Any]:
    """Rows that the models of a folder take."""
    import pandas

    x = np.random.default_rng(1).normal(size=(5, 3))
    table = folder / "train.csv"
    return {"x": x, "table": pandas.read_csv(table).head(7) if table.exists() else None}


def main() -> None:
    """See above."""
    folder, count, seed, *names = sys.argv[1:]
    paths = [p for p in sorted(Path(folder).glob("*.udn")) if not names or p.stem in names]
    rows, scratch = rows_for(Path(folder)), Path(folder) / "mutated.bin"
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {p.stem: attack(p, int(count), int(seed), rows, scratch) for p in paths}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"mb_before": before // 1024, "mb_most": after // 1024}
    print(json.dumps({**found, **memory}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
