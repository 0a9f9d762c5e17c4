"""The spiral study: Table 1 of the paper, its figures of accuracy and depth, and what goes beyond.

Networks that infer their depth (udn with the paper's truncated Poisson, udn-concentrated with a
Conway–Maxwell–Poisson of less spread), networks of fixed depth (omega1 … omega10) and depth
uncertainty networks (dun10 as the paper's authors ran them, dun10-original as their own paper
defines them), residual networks (resnet10) and neural ODEs (node, anode) learn spirals of growing
rotation speed ω. All speeds, seeds, depths and rates train at once, as populations. The best epoch
by validation accuracy is scored on the test part.

Everything that is offered to one model is offered to all: initialisation, averaging of weights,
schedules, ensembles.
"""

import argparse
import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

from unbounded import interrupts
from unbounded.experiments import records, shares, usable_device
from unbounded.experiments.spiral import recipe, runs
from unbounded.experiments.spiral.recipe import Settings, groups, settings_of
from unbounded.printing import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    add = parser.add_argument
    many: dict[str, Any] = {"type": float, "nargs": "+", "metavar": "X"}
    models = (
        "udn, udn-concentrated, omega3 or omega1-10, dun10, dun10-original, resnet10, node, anode "
    )
    models += "(default: udn omega1-10 dun10)"
    inits = (
        "initialisation of every model: torch's default (the paper's), he, identity; or settled, "
    )
    inits += "the library's own recipe: other layers, averaged weights, depth by held-out rows"
    add("--device", default=None, help="cpu or cuda; cuda if there is one")
    add("--models", nargs="+", default=recipe.MODELS, metavar="NAME", help=models)
    add("--omegas", default=list(Settings.omegas), help="rotation speeds", **many)
    add("--lr", default=[0.005], help="learning rates (default: 0.005)", **many)
    add("--init", nargs="+", default=["default"], choices=sorted(recipe.INITS), help=inits)
    for option, about in _NUMBERS.items():
        usual = getattr(Settings, option.replace("-", "_"))
        add(f"--{option}", type=type(usual), default=usual, help=f"{about} (default: {usual:g})")
    add("--average", type=float, metavar="DECAY", help="average every model's weights over steps")
    schedules = sorted(recipe.SCHEDULES)
    add("--schedule", choices=schedules, default="constant", help="of the learning rates")
    add("--no-references", action="store_true", help="no neighbours, SVM, limit")
    add("--quick", action="store_true", help="a coarse study in a minute or two")
    add("--chunk", type=int, help="networks at a time; all by default")
    add("--resume", action="store_true", help="go on where this was interrupted")
    add("--out", type=Path, default=Path("results/spiral"), help="folder to write")


_NUMBERS = {
    "seeds": "how many: 0, 1, …",
    "epochs": "passes over the data",
    "width": "of hidden layers",
    "rate": "the UDN's first λ",
    "concentrated-rate": "udn-concentrated's first μ",
    "concentration": "and its ν",
    "depth-lr-ratio": "λ's learning rate over the weights'",
    "dun-depth-lr-ratio": "the same for DUN",
    "depth-warmup": "hold q(ℓ) of UDN and DUN still for this many epochs",
    "members": "models in an ensemble, for every model",
}
"""Options that are one number of `Settings`, and what they mean."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, score, write results, table and figures; returns the results."""
    settings = settings_of(options)
    shares.processes()
    parts, described = options.out / "parts", dataclasses.asdict(settings)
    shares.planned(lambda: records.open_parts(parts, described, ["results.json"], options.resume))
    with records.resumable(parts):
        return _run(settings, parts, options)


def _run(settings: Settings, parts: Path, options: argparse.Namespace) -> dict[str, Any]:
    device = usable_device(options.device)
    start = time.perf_counter()
    everyone = groups(settings)
    kept = shares.planned(
        lambda: [g.name for g in everyone if options.resume and _file(parts, g).exists()]
    )
    for group in everyone:
        if group.name not in kept:
            found = runs.train(group, settings, device, parts, options)
            with shares.concluded() as is_mine:
                if is_mine:
                    records.write_json(_file(parts, group), found)
    with shares.concluded() as is_mine:
        return _written(settings, parts, device, options, start) if is_mine else {}


def _file(parts: Path, group: recipe.Group) -> Path:
    """What a population that is trained ends with."""
    return parts / f"{group.name}.json"


def _written(
    settings: Settings, parts: Path, device: str, options: argparse.Namespace, start: float
) -> dict[str, Any]:
    """References, results, table and figures, once all populations are trained."""
    from unbounded.experiments.spiral import table  # a command of its own, with `python -m`

    found = {group.name: records.read_json(_file(parts, group)) for group in groups(settings)}
    rows = [row for part in found.values() for row in part["runs"]]
    seconds = {name: part["seconds"] for name, part in found.items()}
    references: list[dict[str, Any]] = []
    if settings.references:
        references = runs.references(settings, parts / "references.json", options.resume)
    results: dict[str, Any] = {
        "study": "spiral",
        "configuration": dataclasses.asdict(settings) | recipe.settled(settings),
        "versions": records.versions(device),
        "seconds": {"total": round(time.perf_counter() - start, 1), "training": seconds},
        "summary": table.summary(rows, references),
        "runs": rows,
        "references": references,
    }
    with interrupts.shielded():  # a moment's work, and the parts are gone then
        records.write_json(options.out / "results.json", results)
        shutil.rmtree(parts)
        show(table.write(options.out))
        show(f"wrote results.json, table.md and figures into {options.out}")
    return results
