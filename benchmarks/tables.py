"""`python -m benchmarks.tables`: default estimators beside those that people choose today.

Every model has its defaults, one thread, and the same rows. CatBoost and RealMLP-TD are the extra
`unbounded[rivals]`; where they are not installed they are left out, and it is said. Sets: nine of
UCI (with --data or $UNBOUNDED_DATA), scikit-learn's, some that are made, and with --tables the CSV
files of a folder. Scores are of test rows: RMSE, NLL and coverage, or log loss and accuracy; and
CPU seconds of a fit. "depth 1" … "depth 6" are networks of one depth by the UDN's own recipe.
Results go to OUT/runs.json as they come; a second run goes on from there. Each row says which
commit it was made on; of the models that --again names, those of other commits are made anew.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch

from benchmarks.table_models import FIXED, models
from benchmarks.table_sets import MOST_ROWS, Task, tasks
from unbounded import UDNClassifier, UDNRegressor, __version__, metrics
from unbounded.atomic import write_text
from unbounded.data.downloads import DataError

_LEAST = 1e-4  # of an error, when errors are compared as ratios: below, all are as good as 0


class Source(NamedTuple):
    """Where the sets come from; travels to other processes."""

    data: Path | None
    tables: Path | None
    rows: int

    def task(self, name: str) -> Task:
        """The set of that name."""
        return next(task for task in tasks(*self) if task.name == name)


class Fit(NamedTuple):
    """One model on one split of one set."""

    set: str
    split: int
    model: str


def run(source: Source, fit: Fit) -> dict[str, Any]:
    """Fit and score; in place of scores the reason where something is missing."""
    torch.set_num_threads(1)
    task = source.task(fit.set)
    train = dict(models(task.is_classes, fit.split))[fit.model]
    try:
        x, y, test_x, test_y = task.rows(fit.split)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = train(x, y)
            seconds = time.process_time() - start
            scores = (
                _classes(model, test_x, test_y)
                if task.is_classes
                else _numbers(model, test_x, test_y)
            )
    except ImportError as error:
        return {"missing": fit.model, "why": f"{error}; pip install 'unbounded[rivals]'"}
    except DataError as error:
        return {"missing": fit.set, "why": str(error)}
    row = {**fit._asdict(), "rows": len(x), "columns": x.shape[1], "cpu_seconds": round(seconds, 2)}
    row |= {"commit": commit()} | scores
    if isinstance(model, UDNClassifier | UDNRegressor):
        row["depth_mean"] = round(model.depth_mean_, 3)
        row["best_epoch"], row["epochs"] = model.best_epoch_, model.n_iter_
        best = model.history_[model.best_epoch_ - 1]
        row["held_out"] = -best["val_log_score"] if task.is_classes else best["val_rmse"]
    return {key: round(v, 8) if isinstance(v, float) else v for key, v in row.items()}


def _classes(model: Any, x: Any, y: Any) -> dict[str, float]:
    probs = np.clip(np.asarray(model.predict_proba(x), np.float64), 1e-15, None)
    probs /= probs.sum(1, keepdims=True)
    labels = np.searchsorted(np.asarray(model.classes_).astype(y.dtype), y)
    return {
        "log_loss": -metrics.log_score(labels, probs),
        "accuracy": metrics.accuracy(labels, probs),
    }


def _numbers(model: Any, x: Any, y: Any) -> dict[str, float]:
    scores = {"rmse": metrics.rmse(y, np.asarray(model.predict(x)).ravel())}
    if not isinstance(model, UDNRegressor):
        return scores
    if len(model.members_) == 1:
        means, scales = model.predict_by_depth(x, return_std=True)
        probs = model.depth_probs_[model.depths_[0] - 1 : model.depths_[-1]]
        scores["nll"] = metrics.mixture_nll(y, probs, means, scales)
    low, high = model.predict_quantiles(x, [0.05, 0.95])
    scores["in_90"] = metrics.coverage(y, low, high)
    with suppress(ValueError):  # too few held-out rows to promise that
        low, high = model.predict_interval(x, 0.9)
        scores["in_90_conformal"] = metrics.coverage(y, low, high)
    return scores


class Means:
    """Mean scores over the splits that two models have in common, or that one has."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.values = {(row["set"], row["model"], row["split"]): row for row in rows}
        there = {row["model"] for row in rows}
        self.names = [name for name, _ in models(False, 0) if name in there]
        order = [task.name for task in tasks(None)]
        order += sorted({row["set"] for row in rows} - set(order))
        self.sets = sorted({row["set"] for row in rows}, key=order.index)
        self.splits = sorted({row["split"] for row in rows})

    def of(self, which: str, model: str, score: str, beside: str | None = None) -> float:
        """NaN where there is none."""
        found = []
        for split in self.splits:
            row = self.values.get((which, model, split), {})
            other = row if beside is None else self.values.get((which, beside, split), {})
            if score in row and score in other:
                found.append(row[score])
        return float(np.mean(found)) if found else math.nan

    def ratio(self, model: str, score: str) -> float:
        """The first model's ÷ this one's: geometric mean over sets of the splits in common."""
        ours = self.names[0]
        logs = []
        for which in self.sets:
            pair = self.of(which, ours, score, model), self.of(which, model, score, ours)
            if not any(math.isnan(v) for v in pair):
                logs.append(math.log(max(pair[0], _LEAST) / max(pair[1], _LEAST)))
        return math.exp(np.mean(logs)) if logs else math.nan

    def over_sets(self, model: str, score: str) -> float:
        """The mean over the sets that this model and the first have."""
        found = [self.of(which, model, score, self.names[0]) for which in self.sets]
        return float(np.nanmean(found)) if not all(map(math.isnan, found)) else math.nan


def table(rows: list[dict[str, Any]]) -> str:
    """Mean scores of each set and model, how models compare over all sets, and fixed depths."""
    fixed = {f"depth {depth}" for depth in FIXED}
    parts = []
    for score, heading in (("rmse", "Test RMSE"), ("log_loss", "Test log loss")):
        some = [row for row in rows if score in row]
        if not some:
            continue
        means = Means(_in_common([row for row in some if row["model"] not in fixed]))
        names = means.names
        lines = [f"{heading}, mean over the splits that all models have", ""]
        lines.append(f"| set | rows | splits | {' | '.join(names)} | E[ℓ] |")
        lines.append("|---" * (len(names) + 4) + "|")
        for which in means.sets:
            values = [means.of(which, name, score) for name in names]
            here = [key for key in means.values if key[0] == which]
            splits = len({split for _, _, split in here})
            start = f"| {which} | {means.values[here[0]]['rows']:,} | {splits}"
            depth = means.of(which, names[0], "depth_mean")
            last = "–" if math.isnan(depth) else f"{depth:.1f}"
            lines.append(f"{start} | {' | '.join(_marked(values))} | {last} |")
        ratios = [f"{means.ratio(name, score):.3f}" for name in names]
        lines.append(f"| {names[0]} ÷ model, geometric mean | | | {' | '.join(ratios)} | |")
        others = {"cpu_seconds": "CPU seconds of a fit, mean", "accuracy": "accuracy, mean"}
        for other, what in others.items():
            if other in some[0]:
                cells = [f"{means.over_sets(name, other):.4g}" for name in names]
                lines.append(f"| {what} | | | {' | '.join(cells)} | |")
        parts.append("\n".join(lines))
        parts += _by_depth([row for row in some if row["model"] in {*fixed, "UDN"}], score, heading)
    return "\n\n".join(parts)


def _in_common(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each set the splits that all of its models have, so that their means compare."""
    splits: dict[str, dict[str, set[int]]] = {}
    for row in rows:
        splits.setdefault(row["set"], {}).setdefault(row["model"], set()).add(row["split"])
    common = {which: set.intersection(*found.values()) for which, found in splits.items()}
    return [row for row in rows if row["split"] in common[row["set"]]]


def _marked(values: list[float]) -> list[str]:
    """As text, the smallest in bold."""
    best = np.nanmin(values)
    cells = ["–" if math.isnan(v) else f"{v:.4g}" for v in values]
    return [f"**{c}**" if v == best else c for c, v in zip(cells, values, strict=True)]


class _Pairs:
    """By how much the UDN's errors exceed others, set by set."""

    def __init__(self) -> None:
        self.as_good = self.several = 0

    def add(self, pairs: list[tuple[float, float]]) -> str:
        """Errors of the UDN and of another on the same splits: their mean difference, in words."""
        apart = np.subtract(*np.transpose(pairs))
        if len(apart) == 1:
            return f"{apart[0]:+.3g}, one split"
        error = np.std(apart, ddof=1) / math.sqrt(len(apart))
        self.several, self.as_good = self.several + 1, self.as_good + bool(apart.mean() <= error)
        return f"{apart.mean():+.3g}, ± {error:.2g}"

    def __str__(self) -> str:
        return f"{self.as_good} of {self.several} sets with several splits"


def _by_depth(rows: list[dict[str, Any]], score: str, heading: str) -> Iterator[str]:
    """The UDN beside networks of one depth.

    Whether it is as good as the best of them in hindsight, and as the one that a search would have
    taken: on each split that with the best score on its held-out rows.
    """
    with_depths = {row["set"] for row in rows if row["model"] != "UDN"}
    means = Means(_in_common([row for row in rows if row["set"] in with_depths]))
    depths = [name for name in means.names if name != "UDN"]
    sets = (
        [s for s in means.sets if not math.isnan(means.of(s, depths[0], score))] if depths else []
    )
    if not sets:
        return
    lines = [f"{heading}, UDN and networks of one depth by the same recipe", ""]
    lines.append(
        f"| set | UDN | {' | '.join(depths)} | UDN − best, ± its standard error "
        "| chosen by held-out rows | UDN − chosen |"
    )
    lines.append("|---" * (len(depths) + 5) + "|")
    in_hindsight, searched, ratios = _Pairs(), _Pairs(), list[float]()
    for which in sets:
        values = [means.of(which, name, score) for name in ("UDN", *depths)]
        best = depths[int(np.nanargmin(values[1:]))]
        there = [d for d, value in zip(depths, values[1:], strict=True) if not math.isnan(value)]
        found = [
            {name: means.values[which, name, split] for name in ("UDN", *there)}
            for split in means.splits
            if all((which, name, split) in means.values for name in ("UDN", *there))
        ]
        apart = in_hindsight.add([(one["UDN"][score], one[best][score]) for one in found])
        cells = [which, *_marked(values), apart, "–", "–"]
        if all("held_out" in one[name] for one in found for name in there):
            chosen = [min(there, key=lambda name: one[name]["held_out"]) for one in found]
            errors = [one[name][score] for one, name in zip(found, chosen, strict=True)]
            pairs = [(one["UDN"][score], e) for one, e in zip(found, errors, strict=True)]
            cells[-2:] = [f"{np.mean(errors):.4g}", searched.add(pairs)]
            if len(found) > 1:
                ratios.append(max(values[0], _LEAST) / max(float(np.mean(errors)), _LEAST))
        lines.append(f"| {' | '.join(cells)} |")
    if in_hindsight.several:
        lines += ["", f"As good as the best depth in hindsight: {in_hindsight}."]
    if searched.several:
        lines.append(
            f"As good as the depth that held-out rows choose: {searched}; "
            f"{math.exp(np.mean(np.log(ratios))):.3f} times its error."
        )
    yield "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--sets", nargs="+", metavar="NAME", help="some of the sets; all by default")
    add("--models", nargs="+", metavar="NAME", help="some of the models; all by default")
    add("--again", nargs="+", metavar="NAME", default=[], help="models whose rows are made anew")
    add("--splits", type=int, default=3, help="splits of each set (default: 3)")
    add("--rows", type=int, default=MOST_ROWS, help=f"training rows at most ({MOST_ROWS})")
    add("--data", type=Path, help="folder with the UCI sets; else $UNBOUNDED_DATA")
    add("--tables", type=Path, help="folder with CSV files, the target in the last column")
    add("--out", type=Path, default=Path("results/tables"), help="where results go")
    add("--jobs", type=int, default=1, help="fits at once, each with one thread (default: 1)")
    add("--minutes", type=float, default=math.inf, help="begin no fit after so many")
    options = parser.parse_args()
    if options.tables is not None and not any(options.tables.glob("*.csv")):
        parser.error(f"{options.tables} has no CSV file")
    source = Source(options.data, options.tables, options.rows)
    path = options.out / "runs.json"
    found = json.loads(path.read_text()) if path.exists() else {"versions": {}, "runs": []}
    rows: list[dict[str, Any]] = [r for r in found["runs"] if not _is_old(r, options)]
    # Of what is not installed here, rows of an earlier run may be there.
    used = {name: found["versions"].get(name) for name, v in versions().items() if v is None}
    missing: dict[str, str] = {}
    for row in _runs(source, list(_wanted(source, options, rows)), options, missing):
        if "missing" in row:
            missing[row["missing"]] = row["why"]
            continue
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"versions": versions() | used, "runs": rows}, indent=1))
    for name, reason in missing.items():
        print(f"{name}: left out, {reason}", file=sys.stderr)
    if not rows:
        print("nothing was run", file=sys.stderr)
        return 1
    text = table(rows)
    write_text(options.out / "table.md", text + "\n")
    print(text)
    return 0


def _is_old(row: dict[str, Any], options: Any) -> bool:
    """Whether a row is to be made anew."""
    asked = row["model"] in options.again and (not options.sets or row["set"] in options.sets)
    return asked and row.get("commit") != commit()


def _wanted(source: Source, options: Any, rows: list[dict[str, Any]]) -> Iterator[Fit]:
    """What is asked for and not there yet."""
    done = {Fit(row["set"], row["split"], row["model"]) for row in rows}
    for split in range(options.splits):
        for task in tasks(*source):
            for name, _ in models(task.is_classes, split):
                fit = Fit(task.name, split, name)
                by_set = not options.sets or task.name in options.sets
                by_model = not options.models or name in options.models
                if by_set and by_model and fit not in done:
                    yield fit


def _runs(
    source: Source, fits: list[Fit], options: Any, missing: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """One after another, or several at once in processes of their own."""
    start = time.monotonic()

    def is_due(fit: Fit) -> bool:
        in_time = time.monotonic() - start <= 60 * options.minutes
        return in_time and fit.model not in missing and fit.set not in missing

    if options.jobs == 1:
        yield from (run(source, fit) for fit in fits if is_due(fit))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        pending: set[Future[dict[str, Any]]] = set()
        left = iter(fits)
        while True:
            while len(pending) < options.jobs:
                fit = next((fit for fit in left if is_due(fit)), None)
                if fit is None:
                    break
                pending.add(pool.submit(run, source, fit))
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


@cache
def commit() -> str | None:
    """That of the code, with a + where it has changed since; None outside of a repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent.parent), *words]
        try:
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError:  # no git here
            return ""

    head = git("rev-parse", "--short", "HEAD")
    changed = git("status", "--porcelain", "--", "src", "benchmarks")
    return f"{head}{'+' if changed else ''}" or None


def versions() -> dict[str, Any]:
    """Of what the numbers depend on."""
    found: dict[str, Any] = {"unbounded": __version__, "python": platform.python_version()}
    found |= {"torch": torch.__version__, "scikit-learn": sklearn.__version__}
    for name in ("catboost", "pytabkit"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found | {"cpu_cores": os.cpu_count(), "threads": 1}


if __name__ == "__main__":
    sys.exit(main())
