"""Tables of a study that was run: `python -m unbounded.experiments.uci.table RESULTS`.

Reads the results of each set in the folder RESULTS, and writes `table.md` and the figure beside
them.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unbounded.data.uci import SETS
from unbounded.experiments import records
from unbounded.experiments.pages import markdown_table, plus_minus, publish, rewrite
from unbounded.experiments.uci import figure, published
from unbounded.experiments.uci.models import CATBOOST, CHOSEN, FINITE, LABELS, REALMLP, TABLES
from unbounded.experiments.uci.published import Estimate

Results = dict[str, dict[str, Any]]
"""The results of each set, in the order of `SETS`."""


def read(folder: Path) -> Results:
    """The results in a folder."""
    found = {name: folder / f"{name}.json" for name in SETS}
    return {name: records.read_json(path) for name, path in found.items() if path.is_file()}


def estimates(result: Mapping[str, Any], metric: str) -> dict[str, Estimate]:
    """Mean and standard error over the splits, for each model of a set."""
    values: dict[str, list[float]] = {}
    for row in result["rows"]:
        if metric in row:  # a model without depths has none
            values.setdefault(row["model"], []).append(row[metric])
    return {model: summary(values[model]) for model in LABELS if model in values}


def summary(values: Sequence[float]) -> Estimate:
    """Mean and standard error."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, math.nan)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return Estimate(mean, math.sqrt(variance / len(values)))


def not_worse(one: Estimate, other: Estimate) -> bool:
    """At least as good: not worse than the other mean by more than its own standard error."""
    return one.mean <= other.mean + (0.0 if math.isnan(one.error) else one.error)


def markdown(results: Results) -> str:
    """Everything as one page of tables."""
    gap = next(iter(results.values()))["configuration"]["kind"] == "gap"
    parts = []
    tables = {"RMSE": published.RMSE | {"HistGB": published.BOOSTING}, "NLL": published.NLL}
    constant = {n: estimates(r, "nll_constant").get(CATBOOST) for n, r in results.items()}
    one_scale = {f"{LABELS[CATBOOST]}, one σ": {n: e for n, e in constant.items() if e}}
    for title, others in (tables | {"CRPS": {}}).items():
        parts.append(f"### {title}, original units, mean ± standard error over the splits\n")
        beside: dict[str, Mapping[str, Estimate]] = {} if gap else dict(others)
        if title == "NLL" and any(constant.values()):
            beside = {**one_scale, **beside}
        parts.append(_metric_table(results, title.lower(), beside))
    parts += ["### Coverage (and mean width) of central intervals\n", _coverage(results)]
    parts += ["### E[ℓ] of the UDN\n", _depths(results)]
    if not gap:
        parts += ["### What holds\n", _verdicts(results)]
    parts += ["### Time\n", _times(results)]
    return "\n".join(parts)


def _metric_table(
    results: Results, metric: str, others: Mapping[str, Mapping[str, Estimate]]
) -> str:
    each = {name: estimates(result, metric) for name, result in results.items()}
    models = [model for model in LABELS if any(model in row for row in each.values())]
    head = ["set", "splits", *(LABELS[m] for m in models), *others]
    rows = []
    for name, row in each.items():
        best = min(row.values(), key=lambda f: f.mean)
        digits = _digits(best)
        cells = []
        for model in models:
            cell = plus_minus(*row[model], digits) if model in row else "–"
            cells.append(f"**{cell}**" if row.get(model) == best else cell)
        cells += [plus_minus(*f[name], digits) if name in f else "–" for f in others.values()]
        splits = {row["split"] for row in results[name]["rows"]}
        rows.append([name, str(len(splits)), *cells])
    return markdown_table(head, rows)


def _coverage(results: Results) -> str:
    models = [m for m in ("udn", "udn-ensemble", "deep-ensemble") if _has(results, m)]
    models = models or [m for m in LABELS if _has(results, m)][:3]
    models += [TABLES] if TABLES not in models and _has(results, TABLES, some=True) else []
    levels = list(next(iter(results.values()))["rows"][0]["coverage"])
    head = ["set", *(f"{LABELS[m]}, {float(v):.0%}" for m in models for v in levels)]
    rows = []
    for name, result in results.items():
        cells = []
        for model in models:
            mine = [row for row in result["rows"] if row["model"] == model]
            if not mine:
                cells += ["–"] * len(levels)
                continue
            for level in levels:
                inside = sum(row["coverage"][level] for row in mine) / len(mine)
                width = sum(row["width"][level] for row in mine) / len(mine)
                cells.append(f"{inside:.1%} ({width:.3g})")
        rows.append([name, *cells])
    return markdown_table(head, rows)


def _depths(results: Results) -> str:
    if not _has(results, "udn"):
        return "The UDN was not run.\n"
    models = [m for m in ("udn", *CHOSEN) if _has(results, m)]
    models += [TABLES] if _has(results, TABLES, some=True) else []
    head = ["set", "E[ℓ]", "the paper says", *(f"{LABELS[m]}: E[ℓ]" for m in models[1:])]
    rows = []
    for name, result in results.items():
        depths = estimates(result, "depth_mean")
        claim = "below 2" if name in published.SHALLOW else "more"
        first, *others = [
            plus_minus(*depths[model], 2) if model in depths else "–" for model in models
        ]
        rows.append([name, first, claim, *others])
    return markdown_table(head, rows)


def verdicts(results: Results) -> dict[str, dict[str, bool]]:
    """For each thing to be reached, whether it is, set by set.

    "At least as good" is `not_worse`. Published figures, finite depths and CatBoost's two kinds of
    noise are the best of their kind in hindsight, set by set.
    """
    found: dict[str, dict[str, bool]] = {}

    def note(claim: str, name: str, good: bool) -> None:
        found.setdefault(claim, {})[name] = good

    for name, result in results.items():
        for title, others in (("RMSE", published.RMSE), ("NLL", published.NLL)):
            row = estimates(result, title.lower())
            finite = [row[m] for m in FINITE if m in row]
            for model in ("udn", *CHOSEN, TABLES):
                if model not in row or len(finite) < len(FINITE):
                    continue
                best = min(finite, key=lambda f: f.mean)
                good = not_worse(row[model], best)
                note(f"{LABELS[model]} as good as the best of f2…f6, {title}", name, good)
                good = row[model].mean < sum(f.mean for f in finite) / len(finite)
                note(f"{LABELS[model]} better than their average, {title}", name, good)
            for rival in (CATBOOST, REALMLP):
                if TABLES not in row or rival not in row:
                    continue
                kinds = [row[rival], estimates(result, "nll_constant").get(rival)]
                kinds = kinds if title == "NLL" else kinds[:1]
                other = min((k for k in kinds if k is not None), key=lambda f: f.mean)
                good = not_worse(row[TABLES], other)
                note(f"{LABELS[TABLES]} as good as {LABELS[rival]}, {title}", name, good)
                good = not_worse(other, row[TABLES])
                note(f"{LABELS[rival]} as good as {LABELS[TABLES]}, {title}", name, good)
            ours = [row[m] for m in ("udn", *CHOSEN, "udn-ensemble", TABLES) if m in row]
            if not ours:
                continue
            known = min((f[name] for f in others.values() if name in f), key=lambda f: f.mean)
            good = any(not_worse(one, known) for one in ours)
            note(f"best UDN variant as good as the best published, {title}", name, good)
            if TABLES in row:
                good = not_worse(row[TABLES], known)
                note(f"{LABELS[TABLES]} as good as the best published, {title}", name, good)
            if title == "RMSE":
                good = any(not_worse(one, published.BOOSTING[name]) for one in ours)
                note("best UDN variant as good as gradient boosting, RMSE", name, good)
    return found


def _verdicts(results: Results) -> str:
    rows = []
    for claim, sets in verdicts(results).items():
        missing = ", ".join(name for name, good in sets.items() if not good)
        rows.append([claim, f"{sum(sets.values())} of {len(sets)}", missing or "–"])
    return markdown_table(["claim", "sets", "not on"], rows)


def _times(results: Results) -> str:
    names = list(next(iter(results.values()))["seconds"])
    head = ["set", "device", *(f"{n}, s" for n in names), "all, s"]
    rows = []
    total = 0.0
    for name, result in results.items():
        runs = [result, *result.get("added", [])]
        seconds = [sum(run["seconds"][n] for run in runs) for n in names]
        total += sum(seconds)
        devices = dict.fromkeys(run.get("versions", {}).get("device") for run in runs)
        device = ", ".join(one for one in devices if one)
        rows.append([name, device, *(f"{s:.0f}" for s in [*seconds, sum(seconds)])])
    rows.append(["all", "", *[""] * len(names), f"{total:.0f}"])
    return markdown_table(head, rows)


def _has(results: Results, model: str, some: bool = False) -> bool:
    """Whether all sets, or some, have results of a model."""
    found = (any(row["model"] == model for row in r["rows"]) for r in results.values())
    return any(found) if some else all(found)


def _digits(best: Estimate) -> int:
    """Decimals that show the second digit of the standard error, or three of the mean."""
    size = best.error if best.error and math.isfinite(best.error) else abs(best.mean) / 10
    return min(6, max(2, 1 - math.floor(math.log10(size)))) if size > 0 else 3


def write(folder: Path) -> str:
    """Write `table.md` and `figure.svg` into a folder of results; returns the tables."""
    results = read(folder)
    if not results:
        raise FileNotFoundError(f"{folder} has no results of a set, such as yacht.json")
    errors, depths = (
        {name: estimates(result, metric) for name, result in results.items()}
        for metric in ("rmse", "depth_mean")
    )
    paint = partial(figure.draw, errors=errors, depths=depths)
    return publish(folder, markdown(results), {"figure.svg": (paint, figure.SIZE)})


main = partial(rewrite, write, __doc__, "folder with NAME.json of each set")

if __name__ == "__main__":
    sys.exit(main())
