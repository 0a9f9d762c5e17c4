"""The runs of a study that are there, and how they are grouped."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from unbounded.experiments import StudyError, records
from unbounded.experiments.cifar10.models import order
from unbounded.experiments.cifar10.plan import STUDY
from unbounded.experiments.cifar10.recipe import RULES, STARTS, Recipe, ignored_by

Result = dict[str, Any]
"""What a run left in its file."""


class Spread(NamedTuple):
    """Mean and standard deviation over seeds (None for a single one)."""

    mean: float
    deviation: float | None


def read(folder: Path) -> list[Result]:
    """The runs in a folder, by model, classes, rule, λ₀ and seed."""
    found = {path: records.read_json(path) for path in sorted((folder / "runs").glob("*.json"))}
    for path, result in found.items():
        if "test_accuracy" not in result:
            raise StudyError(f"{path} has no test accuracy: it is a trial, not a run of the study")
    return sorted(found.values(), key=_order)


def _order(result: Result) -> tuple[Any, ...]:
    run = result["run"]
    classes = tuple(run["classes"])
    place = STUDY.index(classes) if classes in STUDY else len(STUDY)
    return (
        order(run["model"]),
        place,
        classes,
        RULES.index(run["rule"]),
        run["lambda0"],
        run["seed"],
    )


def select(
    results: Iterable[Result],
    model: str | None = None,
    classes: Sequence[str] | None = None,
    lambda0: float | None = None,
    rule: str | None = None,
) -> list[Result]:
    """Those whose run is as described; None is anything."""
    wanted = {"model": model, "lambda0": lambda0, "rule": rule}
    return [
        result
        for result in results
        if all(value is None or result["run"][key] == value for key, value in wanted.items())
        and (classes is None or tuple(result["run"]["classes"]) == tuple(classes))
    ]


def headline(results: Iterable[Result], classes: Sequence[str] = ()) -> list[Result]:
    """The UDN of the tables on a group of classes, always of one rule and one λ₀.

    One of our rules where it was run, else the paper's; the λ₀ with most seeds, of several the
    usual one or the smallest.
    """
    found = select(results, "udn", classes)
    if not found:
        return []
    rule = min((r["run"]["rule"] for r in found), key=RULES.index)
    found = select(found, rule=rule)
    starts = [r["run"]["lambda0"] for r in found]
    usual = max(starts, key=lambda start: (starts.count(start), start == STARTS[rule], -start))
    return select(found, lambda0=usual)


def spread_of(results: Sequence[Result], key: str, unit: float = 1.0) -> Spread:
    """A number of the runs, of which there is one at least, in multiples of `unit`."""
    values = [result[key] / unit for result in results]
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation)


def relative_range(values: Sequence[float]) -> float:
    """(largest − smallest) / mean: how much the end depends on the start."""
    return (max(values) - min(values)) / statistics.fmean(values)


def settings(results: Sequence[Result]) -> dict[str, Any]:
    """The recipe of runs: fields that one of their models looks at, as it has them."""
    found: dict[str, Any] = {}
    for result in results:
        unseen = ignored_by(result["run"])
        found |= {key: value for key, value in result["recipe"].items() if key not in unseen}
    return {field.name: found[field.name] for field in fields(Recipe) if field.name in found}
