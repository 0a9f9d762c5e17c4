"""CIFAR-10 with residual blocks: Table 2 of the paper and its figures of the depth posterior.

A UDN and networks of fixed depth (5, 10, 20) learn all ten classes; the UDN also learns an easy
pair of them (deer, automobile) and a hard one (cat, dog), and starts from several λ₀ if asked to.
Every run is one file; tables beside the published figures and drawings are made from these files.
A recipe has a folder; `overview` puts those of all recipes together.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from unbounded import interrupts
from unbounded.baselines.whole import extra
from unbounded.experiments import StudyError, records, shares, usable_device
from unbounded.experiments.cifar10 import models, plan
from unbounded.experiments.cifar10.presets import PRESETS
from unbounded.experiments.cifar10.recipe import LAMBDA0, PAPER_LAMBDA0, STARTS, CifarRun, Recipe
from unbounded.experiments.cifar10.study import (
    MARK,
    OUT_OF_TIME,
    QUICK_IMAGES,
    Study,
    quick_images,
    result_line,
)
from unbounded.experiments.jobs import given, run_jobs, stop_with_parent
from unbounded.printing import show

OUT, QUICK_OUT = Path("results/cifar10"), Path("results/cifar10-quick")
STANDARD = "standard"
"""The folder of the usual recipe, in `OUT`; those of others are called as they are."""
QUICK: dict[str, Any] = {"epochs": 2, "stretch": 1.0, "batch_size": 50}
QUICK |= {"images": QUICK_IMAGES["train"], "held_out": 100}
QUICK_MODELS, QUICK_SEEDS, QUICK_LAMBDA0 = "udn,5", "1", "2"
DEFAULT_MODELS = "udn,5,10,20"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    add = parser.add_argument
    known = f"{models.KNOWN} (default: {DEFAULT_MODELS})"
    add("--models", nargs="+", metavar="NAME", help=known)
    add(
        "--classes",
        nargs="+",
        action="extend",
        metavar="GROUP",
        help="such as all, or deer,automobile: every model learns every group (default: all, and "
        "for the UDN also deer,automobile and cat,dog)",
    )
    starts = f"first λ of the UDN (default: {LAMBDA0:g}; with the rule settled "
    starts += f"{STARTS['settled']:g}, with --schedule paper the paper's, {PAPER_LAMBDA0:g})"
    add("--lambda0", metavar="LIST", help=starts)
    rules = "how q(ℓ) moves: settled, ascent, gradient (the paper's) (default: ascent, with "
    add("--rules", metavar="NAMES", help=rules + "--recipe settled)")
    add("--seeds", metavar="N", help="how many, or a list such as 0,4 (default: 3)")
    schedules = "the paper's 500 epochs, or a short one (default: fast)"
    add("--schedule", choices=("paper", "fast"), default="fast", help=schedules)
    better = "a better recipe for all models, in place of the usual one"
    add("--recipe", choices=tuple(PRESETS), help=better)
    add("--epochs", type=int, metavar="N", help="if not the schedule's own number")
    changes = "other changes of the recipe, such as concentration=4 or validation=5000"
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help=changes)
    add("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    add("--data", type=Path, help="folder with CIFAR-10; else $UNBOUNDED_DATA, or a download")
    add("--out", type=Path, help=f"folder to write (default: a recipe's own in {OUT})")
    add("--resume", action="store_true", help="keep runs that are there, go on with the others")
    add("--again", action="store_true", help="train runs that are there anew")
    add(
        "--jobs", type=int, default=1, metavar="N", help="runs at once, a process each (default: 1)"
    )
    add("--keep", action="store_true", help="keep the trained models, for --evaluate")
    add("--evaluate", action="store_true", help="look at kept models; no training")
    foreign = "foreign images for --evaluate: folders, files, or digits, photographs"
    add("--ood", nargs="+", default=[], metavar="SOURCE", help=foreign)
    passes = "predictions of models with dropout that --evaluate averages (default: 20)"
    add("--passes", type=int, default=20, metavar="N", help=passes)
    add("--minutes", type=float, metavar="X", help="stop within so many; --resume goes on")
    add("--no-train", action="store_true", help="tables and figures of all recipes, or of --out")
    add("--quick", action="store_true", help="few images, 2 epochs; its numbers mean nothing")
    # For a process of --jobs: this run alone, and the end of its time by the machine's monotonic
    # clock, since it does not know when the others began.
    add("--one", metavar="NAME", help=argparse.SUPPRESS)
    add("--until", type=float, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    """Train what is missing, then write tables and figures of all that is there."""
    from unbounded.experiments.cifar10 import table  # a command of its own, with `python -m`

    shares.processes()
    if options.no_train:
        with shares.concluded() as is_mine:
            if is_mine:
                show(table.write(_folder(options)))
        return
    if options.evaluate:
        _evaluate(options)
        return
    study = make_study(options)
    shares.refuse_jobs(options.jobs)
    options.device = usable_device(options.device)
    with interrupts.taken():
        if options.one is not None:
            stop_with_parent()
            mine = [run for run in study.runs if run.name == options.one]
            try:
                _train(study, mine, options)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("what it had saved stays") from None
            return
        wanted = shares.planned(lambda: study.prepare(resume=options.resume, again=options.again))
        _train_all(study, wanted, options)


def _evaluate(options: argparse.Namespace) -> None:
    """Look at the models that were kept."""
    from unbounded.data import cifar10
    from unbounded.experiments.cifar10 import evaluated
    from unbounded.experiments.cifar10.evaluation import Evaluation

    folder = _folder(options)
    if options.passes < 1:
        raise StudyError(f"--passes must be at least 1, got {options.passes}")
    device = usable_device(options.device)
    images = cifar10.load(options.data)
    if (folder / MARK).is_file():
        images = cifar10.CIFAR10(*quick_images(images))
    try:
        found = Evaluation(folder, images, device, options.ood, options.again, options.passes).run()
    except (ValueError, ImportError) as error:
        raise StudyError(str(error)) from None
    show(evaluated.write(folder, found))


def make_study(options: argparse.Namespace) -> Study:
    """What the options ask for, checked before anything is read or written."""
    quick, lambda0 = options.quick, _lambda0(options)
    try:
        runs = plan.plan(
            plan.models_of(" ".join(options.models or [QUICK_MODELS if quick else DEFAULT_MODELS])),
            plan.seeds_of(options.seeds or (QUICK_SEEDS if quick else "3")),
            plan.classes_of(options.classes),
            None if lambda0 is None else plan.lambdas_of(lambda0),
            plan.rules_of(options.rules or ("settled" if options.recipe else "ascent")),
        )
        if options.recipe and options.schedule == "paper":
            raise ValueError("--recipe and --schedule paper are two recipes: give one of them")
        preset = PRESETS.get(options.recipe, {}) | (QUICK if quick else {})
        recipe = Recipe.named(options.schedule, **preset)
        if options.epochs is not None:
            recipe = replace(recipe, epochs=options.epochs)
        recipe = recipe.changed(options.set)
        if not recipe.held_out and any(run.settles for run in runs):
            raise ValueError("--rules settled looks at held-out images: --set held_out=2000")
        for package in {models.package(run.model, recipe) for run in runs} - {None}:
            _check_package(str(package))
    except ValueError as error:
        raise StudyError(str(error)) from None
    if options.jobs < 1:
        raise StudyError(f"--jobs must be at least 1, got {options.jobs}")
    if options.minutes is not None and not options.minutes > 0:
        raise StudyError(f"--minutes must be positive, got {options.minutes:g}")
    if options.resume and options.again:
        raise StudyError("--resume keeps what is there and --again does not: give one of them")
    return Study(_folder(options), runs, recipe, quick)


def _check_package(name: str) -> None:
    """A ValueError, before anything is trained, if a package of the extra is not there."""
    try:
        extra(name)
    except ImportError as error:
        raise ValueError(str(error)) from None


def _train_all(study: Study, wanted: list[CifarRun], options: argparse.Namespace) -> None:
    """Train, one after the other or several at once; then tables, figures, and how it went."""
    from unbounded.experiments.cifar10 import table

    is_first = shares.processes().is_first
    if study.quick and is_first:
        show(table.warning(study.folder), file=sys.stderr)
    kept = len(study.runs) - len(wanted)
    if kept and is_first:
        show(f"{kept} of {len(study.runs)} runs are kept from {study.folder}")
    start, failed = time.monotonic(), list[str]()
    try:
        if options.jobs > 1:
            failed = _at_once(study, wanted, options)
        else:
            _shared_out(study, wanted, options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{study.progress()}; go on with --resume") from None
    with shares.concluded() as is_mine:
        if is_mine:
            _conclude(study, wanted, failed, options, time.monotonic() - start)


def _conclude(
    study: Study,
    wanted: list[CifarRun],
    failed: list[str],
    options: argparse.Namespace,
    seconds: float,
) -> None:
    from unbounded.experiments.cifar10 import table

    if table.read(study.folder):
        with interrupts.shielded():  # a moment's work
            show(table.write(study.folder))
    if failed:
        raise StudyError(
            f"{len(failed)} of {len(wanted)} runs failed: {', '.join(failed)}; "
            f"their output is in {study.folder / 'logs'}"
        )
    show(f"{study.progress()}; {seconds / 60:.1f} minutes")
    if study.missing():
        show(f"--minutes {options.minutes:g} are over; go on with --resume")


def _shared_out(study: Study, wanted: list[CifarRun], options: argparse.Namespace) -> None:
    """Train runs one after the other; of several processes, each those that it comes to first."""
    if not wanted:
        return
    if shares.processes().size > 1:
        shares.planned(lambda: _fetched(options))  # so that a download comes once
    with shares.divided(wanted) as mine:
        _train(study, mine, options)


def _fetched(options: argparse.Namespace) -> None:
    from unbounded.data import cifar10

    cifar10.load(options.data)


def _train(study: Study, runs: Iterable[CifarRun], options: argparse.Namespace) -> None:
    minutes = options.minutes
    if options.until is not None:
        minutes = max(0.01, (options.until - time.monotonic()) / 60)
    study.train(
        runs,
        device=options.device,
        data=options.data,
        resume=not options.again,
        minutes=minutes,
        progress=True if options.one else None,  # a log should show that something goes on
        keep=options.keep,
    )


def _at_once(study: Study, runs: list[CifarRun], options: argparse.Namespace) -> list[str]:
    """Train several at a time, each in a process of its own; returns the names of the failed."""
    by_name = {run.name: run for run in runs}
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    if runs:
        _fetched(options)  # so that a download comes once, and an error too

    def ended(name: str, status: int) -> None:
        path = study.result(by_name[name])
        if status:
            show(f"{name}: failed with status {status}", file=sys.stderr)
        elif path.is_file():
            show(result_line(by_name[name], records.read_json(path)))
        else:
            show(OUT_OF_TIME.format(name))

    statuses = run_jobs(
        list(by_name),
        lambda name: child(options, study.folder, name, options.device, until),
        options.jobs,
        study.folder / "logs",
        minutes=options.minutes,
        started=lambda name, log: show(f"{name}: begun, see {log}"),
        ended=ended,
    )
    return [name for name, status in statuses.items() if status]


def child(
    options: argparse.Namespace, folder: Path, name: str, device: str, until: float | None
) -> list[str]:
    """The command that trains one run of the plan, until a time as `time.monotonic` has it."""
    words = [sys.executable, "-m", "unbounded.experiments", "cifar10", "--one", name]
    words += ["--device", device, "--out", str(folder)]
    words += [] if until is None else ["--until", f"{until:.2f}"]
    words += given(options, "rules", "schedule", "recipe", "models", "seeds", "lambda0", "epochs")
    return words + given(options, "data", "classes", "set", "again", "quick", "keep")


def _lambda0(options: argparse.Namespace) -> str | None:
    """What was asked for, or what a quick look or the paper has; else it depends on the rule."""
    if options.lambda0 is not None:
        return str(options.lambda0)
    if options.quick:
        return QUICK_LAMBDA0
    return f"{PAPER_LAMBDA0:g}" if options.schedule == "paper" else None


def _folder(options: argparse.Namespace) -> Path:
    """What was named, or that of the recipe; without training, that of all recipes."""
    if options.out or options.quick or options.no_train:
        return Path(options.out or (QUICK_OUT if options.quick else OUT))
    own = "paper" if options.schedule == "paper" else STANDARD
    return OUT / (options.recipe or own)
