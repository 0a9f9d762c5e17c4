"""One set: choose on validation parts, train on all training rows, score on the test rows."""

import copy
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from unbounded.data.uci import UCISet
from unbounded.engines import Stacked
from unbounded.experiments.uci import boosted, estimator, realmlp, scores
from unbounded.experiments.uci import models as models_
from unbounded.experiments.uci.recipe import Recipe, Table, table, training_rows, validation_parts
from unbounded.model import UDN
from unbounded.priors import GaussianWeights
from unbounded.training import fit
from unbounded.training.presets import half_cosine

Say = Callable[[str], None]
_CHUNK = 64
RIVALS: dict[str, Any] = {models_.CATBOOST: boosted, models_.REALMLP: realmlp}
"""Models of packages that may be missing, and the modules that fit and score them."""
_ALONE: dict[str, Any] = {models_.TABLES: estimator, **RIVALS}
"""Modules that fit and score the models of `models.ALONE`, split by split."""


@dataclass(frozen=True)
class Job:
    """A network to train."""

    name: str
    rows: Table
    scale: float
    seed: int


@dataclass(frozen=True)
class Trained:
    """A network that was trained."""

    model: UDN
    diverged: bool


@dataclass(frozen=True)
class Choice:
    """What the validation parts of one split say about one kind of network."""

    scale: float  # of the prior on the weights
    factor: float  # of all predicted scales
    nll: float  # with both, on the validation rows
    candidates: dict[str, float]  # the NLL of each scale


@dataclass(frozen=True)
class UCISettings:
    """Which splits and models of one set are trained, and how."""

    kind: str  # "standard" or "gap"
    splits: Sequence[int]
    models: Sequence[str]  # keys of `models.LABELS`, or of `variants`
    recipe: Recipe
    seeds: Sequence[int]  # of the members of an ensemble; single networks have the first
    device: str | torch.device = "cpu"
    chunk: int | None = None  # networks at a time; by default 64 on a CPU, all at once elsewhere
    variants: Mapping[str, models_.Variant] = field(default_factory=lambda: models_.VARIANTS)
    quality: str = "default"  # of the estimator
    processes: int = 1  # for models that are fitted split by split, each with one thread

    @property
    def networks(self) -> list[str]:
        """The models that are made of networks by the study's own recipe."""
        return [model for model in self.models if model not in models_.ALONE]

    @property
    def alone(self) -> list[str]:
        """The models that are not."""
        return [model for model in self.models if model in models_.ALONE]

    @property
    def singles(self) -> list[str]:
        """The networks that have to be trained."""
        return models_.single_models(list(self.models))

    def seeds_of(self, model: str) -> Sequence[int]:
        """Of the networks that a model is made of."""
        return self.seeds if model in models_.ENSEMBLES else self.seeds[:1]

    @property
    def networks_at_a_time(self) -> int | None:
        """A CPU's caches like few, a GPU's many units like all."""
        on_cpu = torch.device(self.device).type == "cpu"
        return _CHUNK if self.chunk is None and on_cpu else self.chunk


def run_set(data: UCISet, plan: UCISettings, say: Say = print) -> dict[str, Any]:
    """Choose, train and score all models on one set; returns plain data.

    Test rows are looked at by the last step alone, to predict and to score them.
    """
    start = time.perf_counter()
    choices = choose(data, plan, say)
    chosen = time.perf_counter()
    tables = whole_tables(data, plan)
    jobs = final_jobs(plan, tables, choices)
    trained = dict(zip(jobs, train(list(jobs.values()), plan), strict=True))
    rows = run_alone(data, plan, say)
    finished = time.perf_counter()
    rows += _score(plan, tables, choices, trained)
    rows.sort(key=lambda row: (row["split"], plan.models.index(row["model"])))
    seconds = {
        "selection": chosen - start,
        "training": finished - chosen,
        "scoring": time.perf_counter() - finished,
    }
    count = len(jobs) + len(plan.splits) * len(plan.alone)
    say(
        f"{data.name}: {count} models on all training rows in {seconds['training']:.1f} s, "
        f"scored in {seconds['scoring']:.1f} s"
    )
    return {"seconds": {k: round(v, 2) for k, v in seconds.items()}, "rows": rows}


def run_alone(data: UCISet, plan: UCISettings, say: Say = print) -> list[dict[str, Any]]:
    """Rows of the models that are fitted and scored split by split, as they come."""
    todo = list(itertools.product(plan.splits, plan.alone))
    if plan.processes == 1 or len(todo) < 2:
        return [_told(_alone(data, plan, *one), data, say) for one in todo]
    # Started afresh: a forked process would share the threads of this one.
    context = multiprocessing.get_context("spawn")
    lean = replace(plan, variants={})
    processes = min(plan.processes, len(todo))
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running = [pool.submit(partial(_alone, data, lean), *one) for one in todo]
        try:
            return [_told(one.result(), data, say) for one in as_completed(running)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _alone(data: UCISet, plan: UCISettings, split: int, name: str) -> tuple[dict[str, Any], float]:
    """A row of results, and seconds."""
    start = time.perf_counter()
    model = _ALONE[name].fit(data, plan, split, _seed(plan.seeds[0], split))
    return _ALONE[name].score(data, plan, split, model), time.perf_counter() - start


def _told(found: tuple[dict[str, Any], float], data: UCISet, say: Say) -> dict[str, Any]:
    row, seconds = found
    name, split = models_.LABELS[row["model"]], row["split"]
    say(f"{data.name}, split {split}, {name}: RMSE {row['rmse']:.4g} in {seconds:.0f} s")
    return row


def whole_tables(data: UCISet, plan: UCISettings) -> dict[int, Table]:
    """All training rows of each split, and its test rows."""
    masks = data.masks(plan.kind)
    return {s: table(data, training_rows(masks[s]), np.flatnonzero(masks[s])) for s in plan.splits}


def choose(data: UCISet, plan: UCISettings, say: Say = print) -> dict[tuple[int, str], Choice]:
    """The prior's scale and the noise's factor, for each split and network."""
    start = time.perf_counter()
    if not plan.singles:
        return {}
    by_candidate = validate(data, plan)
    found: dict[tuple[int, str], Choice] = {}
    for split, name in itertools.product(plan.splits, plan.singles):
        fits = {s: scores.calibrate(by_candidate[split, name, s]) for s in plan.recipe.scales}
        scale = min(fits, key=lambda s: fits[s][1])
        candidates = {f"{s:g}": nll for s, (_, nll) in fits.items()}
        found[split, name] = Choice(scale, *fits[scale], candidates)
    say(
        f"{data.name}: {sum(map(len, by_candidate.values()))} networks on parts of the training "
        f"rows in {time.perf_counter() - start:.1f} s"
    )
    return found


def validate(data: UCISet, plan: UCISettings) -> dict[tuple[int, str, float], list[scores.HeldOut]]:
    """(split, network, scale) → what that candidate predicts for the validation parts."""
    splits, jobs = zip(*selection_jobs(data, plan), strict=True)
    found: dict[tuple[int, str, float], list[scores.HeldOut]] = {}
    for split, job, result in zip(splits, jobs, train(jobs, plan), strict=True):
        predicted = scores.mixture(result.model, job.rows)
        if result.diverged:
            predicted = predicted.widened(math.nan)
        held_out = scores.HeldOut(predicted, job.rows.y, job.rows.rounding)
        found.setdefault((split, job.name, job.scale), []).append(held_out)
    return found


def selection_jobs(data: UCISet, plan: UCISettings) -> list[tuple[int, Job]]:
    """Everything that the selection trains, each with its split."""
    found = []
    for split in plan.splits:
        rows = training_rows(data.masks(plan.kind)[split])
        for train_on, validate_on in validation_parts(rows, plan.recipe, split):
            held = table(data, train_on, validate_on)
            found += [
                (split, Job(name, held, scale, _seed(plan.seeds[0], split)))
                for name in plan.singles
                for scale in plan.recipe.scales
            ]
    return found


def final_jobs(
    plan: UCISettings, tables: dict[int, Table], choices: dict[tuple[int, str], Choice]
) -> dict[tuple[int, str, int], Job]:
    """(split, network, seed) → network of everything that is trained on all training rows."""
    wanted: dict[tuple[int, str, int], Job] = {}
    for split, model in itertools.product(plan.splits, plan.networks):
        name = base_of(model, split, choices)
        for seed in plan.seeds_of(model):
            scale = choices[split, name].scale
            wanted[split, name, seed] = Job(name, tables[split], scale, _seed(seed, split))
    return wanted


def base_of(model: str, split: int, choices: dict[tuple[int, str], Choice]) -> str:
    """The network that a model is made of, in one split."""
    return min(models_.choices_of(model), key=lambda name: choices[split, name].nll)


def train(jobs: Sequence[Job], plan: UCISettings, *, epochs: int | None = None) -> list[Trained]:
    """Train networks, those of one architecture at once; all tables must have one size."""
    recipe = plan.recipe
    found: dict[int, Trained] = {}
    for shares_head in (False, True):
        members = {i: job for i, job in enumerate(jobs) if (job.name == "dun") == shares_head}
        if not members:
            continue
        mine = list(members.values())
        networks = _build(mine, plan)
        variants = [plan.variants.get(job.name, models_.Variant()) for job in mine]
        num_rows = len(mine[0].rows.train[0])
        total = recipe.epochs(num_rows)
        results = fit(
            networks,
            [job.rows.train for job in mine],
            epochs=total if epochs is None else epochs,
            chunk=plan.networks_at_a_time,
            history_every=total,
            progress=False,
            batch_size=recipe.batch_size(num_rows),
            lr=recipe.lr,
            depth_lr_ratio=[variant.of(recipe).depth_lr_ratio for variant in variants],
            schedule=lambda epoch, total=total: half_cosine(epoch / total),
            average=recipe.average,
            engine=Stacked(device=plan.device),
        )
        for index, network, result in zip(members, networks, results, strict=True):
            found[index] = Trained(network, result.stopped == "diverged")
    return [found[index] for index in range(len(jobs))]


def estimate(data: UCISet, plan: UCISettings, epochs: tuple[int, int] = (2, 6)) -> float:
    """Seconds that the set will take, from few and some more epochs of its populations."""
    tables, total = whole_tables(data, plan), 0.0
    guess = Choice(plan.recipe.scales[0], 1.0, 0.0, {})
    choices = {(split, name): guess for split in plan.splits for name in plan.singles}
    few, more = epochs
    for name in plan.alone:  # its time is that of one fit, by the clock
        start = time.perf_counter()
        _ALONE[name].fit(data, plan, plan.splits[0], plan.seeds[0])
        total += (time.perf_counter() - start) * len(plan.splits)
    finals = list(final_jobs(plan, tables, choices).values())
    for jobs in ([job for _, job in selection_jobs(data, plan)], finals):
        if not jobs:
            continue
        seconds = []
        for count in epochs:
            start = time.perf_counter()
            train(jobs, plan, epochs=count)
            seconds.append(time.perf_counter() - start)
        each = max(0.0, seconds[1] - seconds[0]) / (more - few)
        rows = len(jobs[0].rows.train[0])
        total += seconds[0] + each * (plan.recipe.epochs(rows) - few)
    return total


def _build(jobs: Sequence[Job], plan: UCISettings) -> list[UDN]:
    """New networks; those that differ in their prior alone are copies of one another."""
    priors = {job.scale: GaussianWeights(job.scale) for job in jobs}
    first: dict[tuple[str, int], UDN] = {}
    found = []
    for job in jobs:
        key = job.name, job.seed
        if key not in first:
            rest = job.scale, plan.recipe, job.seed, plan.variants
            first[key] = models_.build(job.name, job.rows.x.shape[1], *rest)
        network = copy.deepcopy(first[key])
        network.weight_prior = priors[job.scale]
        found.append(network)
    return found


def _seed(seed: int, split: int) -> int:
    """One for each split and member of an ensemble."""
    return 1000 * seed + split


def _score(
    plan: UCISettings,
    tables: dict[int, Table],
    choices: dict[tuple[int, str], Choice],
    trained: dict[tuple[int, str, int], Trained],
) -> list[dict[str, Any]]:
    rows = []
    predicted = {
        key: scores.mixture(result.model, tables[key[0]]).widened(
            choices[key[:2]].factor, tables[key[0]].rounding
        )
        for key, result in trained.items()
    }
    for split, model in itertools.product(plan.splits, plan.networks):
        name = base_of(model, split, choices)
        keys = [(split, name, seed) for seed in plan.seeds_of(model)]
        found = scores.average([predicted[key] for key in keys])
        choice = choices[split, name]
        depths = [depth_mean(trained[key].model) for key in keys]
        rows.append(
            {
                "model": model,
                "split": int(split),
                **scores.score(found, tables[split].y),
                "depth_mean": sum(depths) / len(depths),
                "network": name,
                "weight_scale": choice.scale,
                "noise_factor": choice.factor,
                "validation_nll": choice.nll,
                "candidates": choice.candidates,
                "diverged": sum(trained[key].diverged for key in keys),
            }
        )
    return rows


def depth_mean(model: UDN) -> float:
    """E[ℓ] under q."""
    posterior = model.posterior()
    depths = torch.arange(posterior.first, posterior.last + 1)
    return float((posterior.log_q.detach().cpu().double().exp() * depths).sum())
