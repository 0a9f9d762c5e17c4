"""Nine UCI regression sets: the UDN, finite networks of 2 to 6 layers, DUN, and ensembles.

For each split, a small grid is tried on validation parts of its training rows, the best candidate
is trained again on all of them, and scored on the test rows: RMSE, NLL, CRPS and the coverage of
intervals, all in original units. Writes the results of each set as JSON, tables beside published
figures, and the two panels of the paper's appendix.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unbounded import interrupts
from unbounded.data import uci
from unbounded.devices import one_thread
from unbounded.experiments import StudyError, listed, records, shares, usable_device
from unbounded.experiments.uci.models import ALONE, ENSEMBLES, LABELS, MEMBERS
from unbounded.experiments.uci.recipe import Recipe
from unbounded.experiments.uci.study import RIVALS, UCISettings, estimate, run_set
from unbounded.printing import show

QUICK = Recipe(width=50, steps=800, scales=(0.3, 1.0), parts=1)
QUICK_SETS, QUICK_SPLITS = ("yacht", "boston", "energy"), 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    add = parser.add_argument
    add("--datasets", metavar="NAMES", help=f"of {','.join(uci.SETS)}; all by default")
    add(
        "--splits",
        default="standard",
        help="standard (20, protein 5), gap, or a number: the first so many standard ones",
    )
    add(
        "--models",
        metavar="NAMES",
        help=f"of {','.join(LABELS)}; all but {', '.join(ALONE)} by default",
    )
    add("--device", default="cpu", help="where to train: cpu, cuda, …")
    add("--data", type=Path, help=f"folder with NAME.npz of each set; else ${uci.FOLDER}")
    add("--out", type=Path, help="folder to write; results/uci or results/uci-gap by default")
    add("--resume", action="store_true", help="keep what is there, run as here; add the rest")
    add("--again", action="store_true", help="keep other models than these, train these anew")
    add("--quick", action="store_true", help="three sets, three splits, short training")
    add("--seeds", default=",".join(map(str, range(MEMBERS))), help="of an ensemble's members")
    add("--width", type=int, help=f"of hidden layers ({Recipe.width})")
    add("--steps", type=int, help=f"Adam steps of each network ({Recipe.steps})")
    add("--chunk", type=int, help="networks at a time, where all do not fit into memory")
    add(
        "--jobs",
        type=int,
        default=1,
        help=f"fits of {', '.join(ALONE)} at once, each with one thread",
    )
    add("--estimate", action="store_true", help="say how long each set would take, and stop")


def run(options: argparse.Namespace) -> None:
    """Run the sets one after the other, then write tables and figure."""
    if options.quick and options.splits == "standard":
        options.splits = str(QUICK_SPLITS)
    with one_thread() if options.quick else nullcontext():
        _run(options)


def _run(options: argparse.Namespace) -> None:
    say: Callable[[str], None] = show if shares.processes().is_first else lambda words: None
    plan = make_plan(options)
    for rival, module in RIVALS.items():
        if rival in plan.models and (reason := module.missing()):
            say(f"{rival} is skipped: {reason}")
            plan = replace(plan, models=[model for model in plan.models if model != rival])
    if not plan.models:
        return
    chosen = listed(options.datasets) if options.datasets else None
    if chosen is None and options.quick:
        chosen = list(QUICK_SETS)
    names = uci.names(chosen)
    if options.estimate:
        _estimate(names, options, plan, say)
        return
    out = options.out or Path("results/uci-gap" if plan.kind == "gap" else "results/uci")
    if options.quick:
        say(
            f"quick: {', '.join(names)}; {options.splits} splits; {plan.recipe.steps} "
            f"steps of width {plan.recipe.width}: how it goes, not how good it is"
        )
    shares.planned(lambda: records.check_folder(out, *(f"{name}.json" for name in names)))
    start = time.perf_counter()
    for name in names:
        data = uci.load(name, options.data)
        mine = _for_set(plan, data, options.splits)
        path = out / f"{name}.json"
        asked = describe(mine, data)
        keeps = options.resume or options.again
        there = shares.planned(partial(_kept, path, asked)) if keeps else None
        if there is not None and options.again:
            there = without(there, mine.models)
        if there is not None:
            done = there["configuration"]["models"]
            mine = replace(mine, models=[m for m in mine.models if m not in done])
        if not mine.models:
            say(f"{name}: kept from {path}")
            continue
        result = run_set(data, mine, say)
        document = {
            "study": "uci",
            "set": name,
            "configuration": describe(mine, data),
            "versions": _versions(mine),
            **result,
        }
        with shares.concluded() as is_mine:
            if is_mine:
                records.write_json(path, document if there is None else added(there, document))
        say(f"{name}: {sum(result['seconds'].values()):.0f} s, wrote {path}")
    with shares.concluded() as is_mine:
        if is_mine:
            _write(out, time.perf_counter() - start)


def _versions(plan: UCISettings) -> dict[str, Any]:
    found = records.versions(plan.device)
    for rival in set(RIVALS) & set(plan.models):
        found |= RIVALS[rival].versions()
    return found


def _write(out: Path, seconds: float) -> None:
    from unbounded.experiments.uci import table  # a command of its own, with `python -m`

    with interrupts.shielded():  # a moment's work
        show(table.write(out))
    show(f"{seconds:.0f} s in all; wrote {out / 'table.md'} and figure.svg")


def _kept(path: Path, configuration: dict[str, Any]) -> dict[str, Any] | None:
    """The results that are there, if they differ from what is asked for in their models alone."""
    there: dict[str, Any] | None = records.read_json(path) if path.is_file() else None
    if there and {**there["configuration"], "models": []} != {**configuration, "models": []}:
        show(f"{path} was made with other settings, it is run again")
        return None
    return there


def added(there: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Results of a set with those of more models, run later; when and where stays with each."""
    before, later = (document["configuration"]["models"] for document in (there, more))
    models = [m for m in LABELS if m in before + later]
    rows = sorted(
        there["rows"] + more["rows"], key=lambda row: (row["split"], models.index(row["model"]))
    )
    note = {"models": later, "versions": more["versions"], "seconds": more["seconds"]}
    return {
        **there,
        "configuration": {**there["configuration"], "models": models},
        "added": [*there.get("added", []), note],
        "rows": rows,
    }


def without(there: dict[str, Any], models: Sequence[str]) -> dict[str, Any] | None:
    """Results of a set without those of some models; None if nothing is left."""
    configuration = there["configuration"]
    left = [model for model in configuration["models"] if model not in models]
    if not left:
        return None
    notes = [
        {**note, "models": kept}
        for note in there.get("added", [])
        if (kept := [model for model in note["models"] if model not in models])
    ]
    rows = [row for row in there["rows"] if row["model"] not in models]
    return {
        **there,
        "configuration": {**configuration, "models": left},
        "added": notes,
        "rows": rows,
    }


def make_plan(options: argparse.Namespace) -> UCISettings:
    """What the options ask for, before any set is read, checked."""
    changes = {k: v for k, v in (("width", options.width), ("steps", options.steps)) if v}
    try:
        recipe = replace(QUICK if options.quick else Recipe(), **changes)
        seeds = [int(seed) for seed in listed(options.seeds)]
    except ValueError as error:
        raise StudyError(str(error)) from None
    device = usable_device(options.device)
    usual = [model for model in LABELS if model not in ALONE]  # which take longest
    wanted = listed(options.models) if options.models else usual
    unknown = [m for m in wanted if m not in LABELS]
    if unknown:
        raise StudyError(f"there is no model {unknown[0]!r}; there are: {', '.join(LABELS)}")
    needed = 2 if any(m in ENSEMBLES for m in wanted) else 1
    if len(set(seeds)) != len(seeds) or len(seeds) < needed or min(seeds) < 0:
        raise StudyError(f"--seeds must be at least {needed} different numbers, got {seeds}")
    splits = options.splits
    if splits not in ("gap", "standard") and not (splits.isdecimal() and int(splits) > 0):
        raise StudyError(f"--splits must be standard, gap or a number, got {splits!r}")
    kind = "gap" if splits == "gap" else "standard"
    models = [m for m in LABELS if m in wanted]
    if options.jobs < 1:
        raise StudyError(f"--jobs must be at least 1, got {options.jobs}")
    quality = "fast" if options.quick else "default"
    return UCISettings(
        kind,
        (),
        models,
        recipe,
        seeds,
        device,
        options.chunk,
        quality=quality,
        processes=options.jobs,
    )


def _for_set(plan: UCISettings, data: uci.UCISet, splits: str) -> UCISettings:
    count = len(data.masks(plan.kind))
    if splits.isdecimal():
        count = min(count, int(splits))
    return replace(plan, splits=range(count))


def describe(plan: UCISettings, data: uci.UCISet) -> dict[str, Any]:
    """All that the results depend on, but the machine."""
    return {
        "kind": plan.kind,
        "splits": list(plan.splits),
        "models": list(plan.models),
        "recipe": plan.recipe.config(),
        "seeds": list(plan.seeds),
        "data": data.checksum,
    }


def _estimate(
    names: list[str],
    options: argparse.Namespace,
    plan: UCISettings,
    say: Callable[[str], None],
) -> None:
    total = 0.0
    for name in names:
        data = uci.load(name, options.data)
        seconds = estimate(data, _for_set(plan, data, options.splits))
        total += seconds
        say(f"{name}: about {seconds:.0f} s")
    say(f"all: about {total / 60:.1f} minutes")
