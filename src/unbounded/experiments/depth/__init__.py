"""The depth suite: does a network that infers its depth end at a depth that is worth having?

Spirals of growing rotation speed, iterated tent maps (whose needed depth is known), nine UCI sets
and those that come with scikit-learn. On each problem networks of the fixed depths 1 … 16 say what
every depth is worth, by the same recipe. Beside them stand the depth that validation chooses among
them, as people search for one, and DUN. The UDN starts from several depths, and trains once three
times as long, which takes up a quarter of the search's time, and once four times. Verdicts: regret,
cost, parsimony, and whether start or length of training matter.

Writes NAME.json and NAME.svg of each problem, and all of it as table.md and page.html.
"""

import argparse
import dataclasses
import math
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from unbounded import interrupts
from unbounded.data.downloads import FOLDER, DataError
from unbounded.devices import one_thread
from unbounded.experiments import StudyError, listed, records, shares, usable_device
from unbounded.experiments.depth import recipe, runs
from unbounded.experiments.depth.problems import Problem, chosen
from unbounded.experiments.depth.recipe import KINDS, Settings, settings_of
from unbounded.experiments.jobs import given, run_jobs, stop_with_parent
from unbounded.printing import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the suite."""
    add = parser.add_argument
    many: dict[str, Any] = {"nargs": "+", "metavar": "N"}
    names = "groups (spirals, tents, uci, sklearn) or names (spiral-2, tent-3, uci-wine, …)"
    add("--problems", nargs="+", metavar="NAME", help=f"{names}; all by default")
    add("--seeds", help="of data and weights (default: 0-4)", **many)
    add("--depths", help="the fixed ones, as 1-16 or 1 2 4 8 (default: 1-16)", **many)
    add("--starts", help="the UDN's first μ; the middle one is compared (default: 1 4 16)", **many)
    add("--no-long", action="store_true", help="without the longer trainings")
    usual = Settings()
    epochs, steps = usual.made_epochs, usual.table_steps
    add("--made-epochs", type=int, help=f"on spirals and tents (default: {epochs})")
    add("--table-steps", type=int, help=f"on tables, about (default: {steps})")
    add("--device", default=None, help="cpu or cuda; cuda if there is one")
    add("--data", type=Path, help=f"folder with NAME.npz of the UCI sets; else ${FOLDER}")
    add("--chunk", type=int, help="networks at a time; all of a population by default")
    add("--minutes", type=float, help="begin no population after so many; --resume goes on")
    add("--jobs", type=int, default=1, help="populations at once, a process each (default: 1)")
    add("--quick", action="store_true", help="five problems, short training: three minutes")
    add("--resume", action="store_true", help="go on where this was interrupted")
    again = f"train these kinds anew and keep all else that --out has: {', '.join(KINDS)}"
    add("--again", nargs="+", choices=tuple(KINDS), metavar="KIND", help=again)
    add("--out", type=Path, default=Path("results/depth"), help="folder to write")
    add("--one", metavar="NAME", help=argparse.SUPPRESS)  # for a process of --jobs: a population


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train, score, write results, pages and figures; returns the results of each problem."""
    settings = settings_of(options)
    if options.minutes is not None and not options.minutes > 0:
        raise StudyError(f"--minutes must be positive, got {options.minutes:g}")
    if options.jobs < 1:
        raise StudyError(f"--jobs must be at least 1, got {options.jobs}")
    words = listed(" ".join(options.problems or ()))
    problems = chosen(words or (recipe.QUICK_PROBLEMS if options.quick else ()))
    parts, processes = options.out / "parts", shares.processes()
    shares.refuse_jobs(options.jobs)
    options.device = usable_device(options.device)
    if options.one is not None:
        return _train_one(problems, settings, parts, options)
    described = dataclasses.asdict(settings) | {"problems": [p.name for p in problems]}
    names = [f"{problem.name}.json" for problem in problems]
    shares.planned(lambda: records.open_parts(parts, described, names, options.resume, "suite"))
    if options.quick and processes.is_first:
        show("quick: few problems, short training: how it goes, not how good it is")
    threads = one_thread() if options.quick else nullcontext()
    with records.resumable(options.out, parts), threads:
        return _run(problems, settings, parts, options)


def _keep(
    problems: list[Problem], settings: Settings, parts: Path, options: argparse.Namespace
) -> None:
    """Rows of other kinds than those of `--again`, from the files of before, as parts of this."""
    asked = records.plain(dataclasses.asdict(settings))
    documents = {}
    for problem in problems:
        file = options.out / f"{problem.name}.json"
        if not file.exists():
            raise StudyError(f"--again keeps what {options.out} has: it has no {problem.name}")
        documents[problem.name] = records.read_json(file)
        made = documents[problem.name]["configuration"]
        differ = [name for name in asked if name in made and asked[name] != made[name]]
        if differ := [name for name in differ if name not in ("long", "spent")]:
            raise StudyError(f"--again: {', '.join(differ)} of {file} differ from what is asked")
    for population in runs.populations(problems, settings):
        part = parts / f"{population.name}.json"
        if population.kind in options.again or part.exists():
            continue
        mine = [documents[name] for name in dict.fromkeys(run.problem for run in population.runs)]
        wanted = [dataclasses.asdict(run) for run in runs.scored(population, settings)]
        rows = [row for one in mine for row in one["runs"]]
        rows = [row for row in rows if {name: row.get(name) for name in wanted[0]} in wanted]
        if len(rows) < len(wanted):
            raise StudyError(
                f"--again keeps what {options.out} has: of {population.name} it has "
                f"{len(rows)} of {len(wanted)} networks"
            )
        twins = [
            {name: row[name] for name in (*wanted[0], runs.TWIN)}
            for row in rows
            if runs.TWIN in row
        ]
        rows = [row for row in rows if runs.TWIN not in row]
        versions = [one for document in mine for one in document["versions"]]
        seconds = round(sum(row["seconds"] for row in rows), 1)
        records.write_json(part, {"seconds": seconds, "versions": versions, "runs": twins + rows})


def _run(
    problems: list[Problem], settings: Settings, parts: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    start = time.perf_counter()
    there = shares.planned(
        lambda: [p.name for p in problems if _is_there(p, settings, options.data)]
    )
    problems = [problem for problem in problems if problem.name in there]
    if not problems:
        raise StudyError("none of these problems has its data here")
    if options.again is not None:
        shares.planned(lambda: _keep(problems, settings, parts, options))
        options.resume = True  # by these parts
    place = runs.Place(options.device, parts, options.data, options.chunk, options.resume)
    until = math.inf if options.minutes is None else start + 60 * options.minutes
    if shares.processes().size > 1:
        _shared_out(problems, settings, place, until)
    if options.jobs > 1:
        _at_once(problems, settings, parts, options)
    if shares.processes().size > 1 or options.jobs > 1:
        place = dataclasses.replace(place, resume=True)
    with shares.concluded() as is_mine:
        return _written(problems, settings, place, options, start, until) if is_mine else []


def _written(
    problems: list[Problem],
    settings: Settings,
    place: runs.Place,
    options: argparse.Namespace,
    start: float,
    until: float,
) -> list[dict[str, Any]]:
    """Train what is not trained yet, and write each problem's file when it is complete."""
    from unbounded.experiments.depth import table  # a command of its own, with `python -m`

    documents: list[dict[str, Any]] = []
    for name in dict.fromkeys(problem.population for problem in problems):
        mine = [problem for problem in problems if problem.population == name]
        done = []
        for population in runs.populations(mine, settings):
            if time.perf_counter() > until:
                show(f"--minutes {options.minutes:g} are over; go on with --resume")
                return documents
            done.append(_part(population, settings, place))
        for problem in mine:
            documents.append(_document(problem, done, settings))
            records.write_json(options.out / f"{problem.name}.json", documents[-1])
    with interrupts.shielded():  # a moment's work, and the parts are gone then
        shutil.rmtree(place.parts)
        show(table.write(options.out))
    seconds = time.perf_counter() - start
    show(f"{seconds:.0f} s in all; wrote table.md, page.html and figures into {options.out}")
    return documents


def _shared_out(
    problems: list[Problem], settings: Settings, place: runs.Place, until: float
) -> None:
    """Train populations in several processes; their rows are then among the parts."""
    by_name = {one.name: one for one in runs.populations(problems, settings)}
    waiting = shares.planned(lambda: _waiting(problems, settings, place.parts, place.resume))
    with shares.divided(waiting) as mine:
        for name in mine:
            if time.perf_counter() > until:
                break
            _part(by_name[name], settings, place)


def _waiting(problems: list[Problem], settings: Settings, parts: Path, resume: bool) -> list[str]:
    """The populations that are not trained yet; what takes longest begins first."""
    names = [population.name for population in runs.populations(problems, settings)]
    names = [name for name in names if not (resume and (parts / f"{name}.json").exists())]
    return sorted(names, key=lambda name: (not name.endswith("-long"), not name.endswith("-spent")))


def _at_once(
    problems: list[Problem], settings: Settings, parts: Path, options: argparse.Namespace
) -> None:
    """Train several populations at a time; their rows are then among the parts."""
    waiting = _waiting(problems, settings, parts, options.resume)

    def ended(name: str, status: int) -> None:
        words = f"failed with status {status}" if status else "done"
        show(f"{name}: {words}", file=sys.stderr if status else None)

    logs = parts / "logs"
    statuses = run_jobs(
        waiting,
        lambda name: child(options, name),
        options.jobs,
        logs,
        minutes=options.minutes,
        ended=ended,
    )
    failed = [name for name, status in statuses.items() if status]
    if failed:
        raise StudyError(
            f"{len(failed)} of {len(waiting)} populations failed, see {logs}; go on with --resume: "
            + ", ".join(failed)
        )


def child(options: argparse.Namespace, name: str) -> list[str]:
    """The command that trains one population."""
    words = [sys.executable, "-m", "unbounded.experiments", "depth", "--one", name]
    words += ["--device", options.device, "--out", str(options.out)]
    words += given(options, "problems", "seeds", "depths", "starts", "made_epochs", "table_steps")
    return words + given(options, "data", "chunk", "no_long", "quick", "resume")


def _train_one(
    problems: list[Problem], settings: Settings, parts: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Train a single population, which some of the options name, for a process of `--jobs`."""
    stop_with_parent()
    place = runs.Place(options.device, parts, options.data, options.chunk, options.resume)
    with one_thread():
        for population in runs.populations(problems, settings):
            if population.name == options.one:
                _part(population, settings, place)
    return []


def _part(population: runs.Population, settings: Settings, place: runs.Place) -> dict[str, Any]:
    """What `runs.train` gives for a population, now or by the run that is resumed."""
    done = place.parts / f"{population.name}.json"
    if place.resume and done.exists():
        show(f"{population.name}: kept from {done}")
        part = records.read_json(done)
    else:
        part = runs.train(population, settings, place)
        records.write_json(done, part)
        for path in place.parts.glob(f"{population.name}*.safetensors"):
            path.unlink()
    return part


def _document(problem: Problem, parts: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """The file of one problem, from the parts of its populations."""
    all_rows = [row for part in parts for row in part["runs"] if row["problem"] == problem.name]
    mine = runs.filled(all_rows)
    versions = [one for part in parts for one in part["versions"]]
    return {
        "study": "depth",
        "problem": problem.described(),
        "start": recipe.start_of(problem, settings),
        "configuration": records.plain(dataclasses.asdict(settings)),
        # One entry for each machine that had a part in it.
        "versions": [one for k, one in enumerate(versions) if one not in versions[:k]],
        "seconds": round(sum(row["seconds"] for row in mine if runs.TWIN not in row), 1),
        "runs": mine,
    }


def _is_there(problem: Problem, settings: Settings, folder: Path | None) -> bool:
    """Whether a problem has its data; says why not."""
    try:
        problem.data(settings.seeds[0], folder)
    except DataError as error:
        show(f"{problem.name}: skipped, {error}")
        return False
    return True
