"""Training and scoring of the depth suite: one population after another.

A trainer takes a population and gives a row for each of its runs. Problems that are no population
of dense networks have a trainer of their own in `TRAINERS`; everything that comes later (verdicts,
table, figures) sees rows alone.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded import growth
from unbounded.engines import Stacked
from unbounded.experiments import records
from unbounded.experiments.depth.problems import PROBLEMS, Parts, Problem
from unbounded.experiments.depth.recipe import (
    KINDS,
    Run,
    Settings,
    build,
    fitting,
    is_on_the_way,
    runs_of,
    start_of,
)
from unbounded.likelihoods import Likelihood, Prediction
from unbounded.model import UDN
from unbounded.predictive import predict
from unbounded.printing import show
from unbounded.training import FitResult, fit
from unbounded.training.callbacks import Callback
from unbounded.training.checkpoint import seconds_so_far
from unbounded.training.trainer import Trainer

Row = dict[str, Any]
TWIN = "same_as"  # a row's field: the start of the run that is the same from its first epoch on
_ROUNDING = 1e-5  # of parameters after one epoch; another start that matters moves q by far more
TRACE = 20  # points of E[ℓ] over training that are kept


@dataclass(frozen=True)
class Population:
    """Runs that train together."""

    name: str
    kind: str  # a key of `KINDS`
    trainer: str  # a key of `TRAINERS`
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Place:
    """Where a population trains, where its data are, and where its checkpoint goes."""

    device: str
    parts: Path
    data: Path | None = None
    chunk: int | None = None
    resume: bool = False


def populations(problems: Sequence[Problem], settings: Settings) -> list[Population]:
    """Those of the problems: all that have one shape and one kind together."""
    found = []
    for name in dict.fromkeys(problem.population for problem in problems):
        mine = [problem for problem in problems if problem.population == name]
        for kind in KINDS:
            runs = [run for problem in mine for run in runs_of(problem, kind, settings)]
            if runs:
                found.append(Population(f"{name}-{kind}", kind, mine[0].trainer, tuple(runs)))
    return found


def train(population: Population, settings: Settings, place: Place) -> dict[str, Any]:
    """Train a population: its seconds, where it was, and a row for each of its runs."""
    count = len(population.runs)
    networks = f"{count} network{'s' if count > 1 else ''}"
    show(f"{population.name}: {networks} ({KINDS[population.kind]})")
    seconds, rows = TRAINERS[population.trainer](population, settings, place)
    versions = records.versions(place.device)
    share(seconds, [row for row in rows if "layer_rows" in row and "seconds" not in row])
    for row in rows:
        row["device"] = versions["device"]
    show(f"{population.name}: {seconds:.1f} s")
    return {"seconds": round(seconds, 1), "versions": [versions], "runs": rows}


def scored(population: Population, settings: Settings) -> list[Run]:
    """The runs that a population has rows of: also those on the way of the longest."""
    lengths = _on_the_way(population, settings)
    return [*population.runs, *(run for n in lengths for run in _shorter(population, n).runs)]


def _on_the_way(population: Population, settings: Settings) -> tuple[int, ...]:
    """The lengths at which a training is scored before its end."""
    is_long = population.kind == "long"
    is_long = is_long and is_on_the_way(PROBLEMS[population.runs[0].problem], settings)
    return settings.lengths[:-1] if is_long else ()


def _shorter(population: Population, length: int) -> Population:
    """The same networks, trained for so many times the usual epochs."""
    runs = tuple(dataclasses.replace(run, length=length) for run in population.runs)
    return dataclasses.replace(population, runs=runs)


def share(seconds: float, rows: Sequence[Row]) -> None:
    """Give each run its seconds of a computation: who computes more has the larger share."""
    work = sum(row["layer_rows"] for row in rows) or 1
    for row in rows:
        row["seconds"] = round(seconds * row["layer_rows"] / work, 3)


def train_dense(
    population: Population, settings: Settings, place: Place
) -> tuple[float, list[Row]]:
    """Dense networks of one shape, as one computation: seconds and rows.

    Where the longest training begins with shorter ones, it stops for a moment at the end of each:
    its rows are those of all. Of starts that lead to the same networks one is trained, see
    `without_twins`.
    """
    population, rows = without_twins(population, settings, place)
    if not population.runs:
        return 0.0, rows
    files = []
    for length in _on_the_way(population, settings):
        files.append(place.parts / f"{population.name}.{length}.json")
        if place.resume and files[-1].exists():
            rows += records.read_json(files[-1])
            continue
        seconds, found = train_until(_shorter(population, length), settings, place)
        share(seconds, found)
        records.write_json(files[-1], found)
        rows += found
        place = dataclasses.replace(place, resume=True)
    seconds, longest = train_until(population, settings, place)
    for file in files:
        file.unlink()
    return seconds, rows + longest


def train_until(
    population: Population, settings: Settings, place: Place
) -> tuple[float, list[Row]]:
    """Dense networks of one shape, from their beginning or where their checkpoint left off."""
    checkpoint = place.parts / f"{population.name}.safetensors"
    seconds = seconds_so_far(checkpoint) if place.resume else 0.0
    start = time.perf_counter()
    trained = fitted(population.runs, settings, place, checkpoint=checkpoint, resume=place.resume)
    seconds += time.perf_counter() - start
    return seconds, [score(*one) for one in trained]


def fitted(
    runs: Sequence[Run], settings: Settings, place: Place, **options: Any
) -> list[tuple[Run, UDN, FitResult, Parts]]:
    """Networks of one shape and length, trained as one computation, with further options of `fit`.

    Each with its run, what came of it, and its data.
    """
    made: dict[tuple[str, int], Parts] = {}  # networks with equal data share the tensors
    for run in runs:
        if (run.problem, run.seed) not in made:
            made[run.problem, run.seed] = PROBLEMS[run.problem].data(run.seed, place.data)
    parts_of = [made[run.problem, run.seed] for run in runs]
    models = [build(run, parts, settings) for run, parts in zip(runs, parts_of, strict=True)]
    rows = len(parts_of[0].train[1])
    results = fit(
        models,
        [parts.train for parts in parts_of],
        validation=[parts.validation for parts in parts_of],
        engine=Stacked(device=place.device),
        chunk=place.chunk,
        progress=False,
        **fitting(PROBLEMS[runs[0].problem], runs[0], rows, settings),
        **options,
    )
    if any(result.stopped == "interrupted" for result in results):
        raise KeyboardInterrupt
    return list(zip(runs, models, results, parts_of, strict=True))


class _FirstEpoch(Callback):
    """Ends a training after its first epoch."""

    def on_epoch_end(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        trainer.stop()


def without_twins(
    population: Population, settings: Settings, place: Place
) -> tuple[Population, list[Row]]:
    """A population without runs that only differ from others by a start that does not matter.

    Each UDN of another start trains for an epoch, and so does the one of the usual start. If all
    their parameters are then the same but for rounding, so are all further steps; whoever has fewer
    layers gets the others first, as it would later on. It is left out, and has a row that names its
    twin: `filled` gives it that one's numbers. Both train alone on a CPU: where a network stands in
    a population is seen in its roundings, and after thousands of steps in all else.
    """
    starts = {run: start_of(PROBLEMS[run.problem], settings) for run in population.runs}
    others = [run for run in population.runs if run.start not in (None, starts[run])]
    if not others:
        return population, []
    usual = list(dict.fromkeys(dataclasses.replace(run, start=starts[run]) for run in others))
    alone = dataclasses.replace(place, device="cpu", chunk=1)
    begun = fitted([*usual, *others], settings, alone, callbacks=[_FirstEpoch()])
    most = max(model.network.num_layers for _, model, _, _ in begun)
    for _, model, _, _ in begun:
        growth.resize(model, most)
    states = {run: model.state_dict() for run, model, _, _ in begun}
    twins = {
        run
        for run in others
        if _same(states[run], states[dataclasses.replace(run, start=starts[run])])
    }
    rows = [{**dataclasses.asdict(run), TWIN: starts[run]} for run in others if run in twins]
    left = tuple(run for run in population.runs if run not in twins)
    show(f"{population.name}: {len(rows)} of {len(others)} begin as those of the usual start do")
    return dataclasses.replace(population, runs=left), rows


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states are the same but for rounding."""
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=0.0, atol=_ROUNDING) for name in one
    )


def filled(rows: Sequence[Row]) -> list[Row]:
    """Rows of a problem, those of twins with the numbers of the run that they are the same as."""
    whole = {_name(row): row for row in rows if TWIN not in row}
    return [
        {**whole[_name(row | {"start": row[TWIN]})], **row} if TWIN in row else row for row in rows
    ]


def _name(row: Row) -> tuple[Any, ...]:
    """The run that a row is of."""
    return tuple(row[field.name] for field in dataclasses.fields(Run))


TRAINERS: dict[str, Callable[[Population, Settings, Place], tuple[float, list[Row]]]] = {
    "dense": train_dense
}
"""Who trains the populations of a problem, by `Problem.trainer`."""


@torch.no_grad()
def score(run: Run, model: UDN, result: FitResult, parts: Parts) -> Row:
    """The row of a run: how it was scored, which depth it has, and what it cost.

    Scores are those of the likelihood (accuracy, RMSE), in the target's units.
    """
    likelihood, best = model.likelihood, result.best_row
    unit, shift = _units(likelihood, parts)
    x, y = parts.test
    history = result.history.rows
    row: Row = {
        **dataclasses.asdict(run),
        "best_epoch": result.best_epoch,
        "stopped": result.stopped,
        "val_score": _number(unit * best.get(f"val_{likelihood.score_name}", math.nan)),
        "val_log_score": _number(best.get("val_log_score", math.nan) - shift),
        **_scored("test", predict(model, x), y, parts),
        "depth_mean": round(model.depth.mean(), 4),
        "layer_rows": layer_rows(history, len(parts.train[1])),
    }
    if run.model != "fixed":
        probs = probabilities(model)
        row["depth_mode"] = 1 + max(range(len(probs)), key=probs.__getitem__)
        row["depth_probs"] = probs
    if run.model == "udn":
        row["last_depth_mean"] = round(history[-1]["depth_mean"], 4) if history else None
        row["settled_epoch"] = result.history.settled_epoch
        row["depth_trace"] = trace(history)
    return row


def _scored(name: str, prediction: Prediction, y: Tensor, parts: Parts) -> Row:
    """Score and log score of a prediction, in the target's units."""
    likelihood = prediction.likelihood
    unit, shift = _units(likelihood, parts)
    value = likelihood.finish_score(float(likelihood.score(prediction, y).double().mean()))
    log_score = float(prediction.log_prob(y).double().mean())
    return {
        f"{name}_score": _number(unit * value),
        f"{name}_log_score": _number(log_score - shift),
    }


def _units(likelihood: Likelihood, parts: Parts) -> tuple[float, float]:
    """What a score is multiplied by and a log score lessened by, for the target's units."""
    is_number = likelihood.score_name == "rmse"
    return (parts.scale, math.log(parts.scale)) if is_number else (1.0, 0.0)


def layer_rows(history: Sequence[Row], rows: int) -> int:
    """Arithmetic of a training: Σ over epochs of rows × layers that were used in the epoch.

    A thinned history stands for the epochs since its last row.
    """
    ends = [0, *(row["epoch"] for row in history)]
    spans = [last - first for first, last in itertools.pairwise(ends)]
    return rows * sum(n * row["max_depth"] for n, row in zip(spans, history, strict=True))


def probabilities(model: UDN) -> list[float]:
    """q(1), q(2), …, to four digits."""
    first, _ = model.support()
    with torch.no_grad():
        found = model.depth_log_probs().exp().tolist()
    return [0.0] * (first - 1) + [round(p, 4) for p in found]


def trace(history: Sequence[Row]) -> list[list[float]]:
    """[epoch, E[ℓ]] at some points of training, the last among them."""
    stride = max(1, math.ceil(len(history) / TRACE))
    return [[r["epoch"], round(r["depth_mean"], 2)] for r in history[::-1][::stride][::-1]]


def _number(value: float) -> float | None:
    """To six digits; None for what is no number, as JSON has it."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
