"""The spiral study: Table 1 of the paper, its figures of accuracy and depth, and what goes beyond.

Networks that infer their depth (udn with the paper's truncated Poisson, udn-concentrated with a
Conway–Maxwell–Poisson of less spread), networks of fixed depth (omega1 … omega10) and depth
uncertainty networks (dun10 as the paper's authors ran them, dun10-original as their own paper
defines them) learn spirals of growing rotation speed ω. All speeds, seeds, depths and rates train
at once, as populations. The best epoch by validation accuracy is scored on the test part.

Everything that is offered to one model is offered to all: initialisation, averaging of weights,
schedules, ensembles.
"""

import argparse
import dataclasses
import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded.baselines import bayes_accuracy, dun, dun_original, nearest_neighbours, rbf_svm
from unbounded.data import spiral
from unbounded.depth import DepthFamily, FixedDepth, TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.engine import MemberResult, combine, fit_population
from unbounded.engine.loop import seconds_so_far
from unbounded.experiments import StudyError, records, spiral_report
from unbounded.layers import Dense
from unbounded.layers.init import Init, he
from unbounded.likelihoods import Categorical, ClassPrediction, Prediction
from unbounded.model import UDN
from unbounded.predictive import predict

OMEGAS = (0.0, 1.0, *(float(omega) for omega in range(2, 31, 2)))
"""The authors' grid of rotation speeds."""
MODELS = ["udn", "omega1-10", "dun10"]
PARTS = ("train", "validation", "test")
ROWS = 1024
BATCH = 256
CLASSES = 2
TRACE = 20  # points of each UDN's depth over training that are kept


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on."""

    models: tuple[str, ...]
    omegas: tuple[float, ...] = OMEGAS
    seeds: int = 5
    epochs: int = 4000
    lr: tuple[float, ...] = (0.005,)
    init: tuple[str, ...] = ("default",)
    width: int = 32
    rate: float = 1.0
    concentrated_rate: float = 4.0
    concentration: float = 4.0
    depth_lr_ratio: float = 0.1
    dun_depth_lr_ratio: float = 1.0
    depth_warmup: int = 0
    average: float | None = None
    schedule: str = "constant"
    members: int = 1
    references: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    numbers: dict[str, Any] = {"type": float, "nargs": "+", "metavar": "X"}
    parser.add_argument("--device", default=None, help="cpu or cuda; cuda if there is one")
    parser.add_argument(
        "--models",
        nargs="+",
        default=MODELS,
        metavar="NAME",
        help="udn, udn-concentrated, omega3 or omega1-10, dun10, dun10-original "
        "(default: udn omega1-10 dun10)",
    )
    parser.add_argument("--omegas", default=list(OMEGAS), help="rotation speeds", **numbers)
    parser.add_argument("--seeds", type=int, default=5, help="how many: 0, 1, … (default: 5)")
    parser.add_argument("--epochs", type=int, default=4000, help="(default: 4000)")
    parser.add_argument("--lr", default=[0.005], help="learning rates (default: 0.005)", **numbers)
    parser.add_argument(
        "--init",
        nargs="+",
        default=["default"],
        choices=sorted(INITS),
        help="initialisation of every model: torch's default (the paper's), he, or identity",
    )
    parser.add_argument("--width", type=int, default=32, help="(default: 32)")
    parser.add_argument("--rate", type=float, default=1.0, help="the UDN's first λ (default: 1)")
    parser.add_argument(
        "--concentrated-rate",
        type=float,
        default=4.0,
        help="udn-concentrated's first μ (default: 4)",
    )
    parser.add_argument("--concentration", type=float, default=4.0, help="and its ν (default: 4)")
    parser.add_argument(
        "--depth-lr-ratio",
        type=float,
        default=0.1,
        help="λ's rate over the weights' (default: 0.1)",
    )
    parser.add_argument(
        "--dun-depth-lr-ratio", type=float, default=1.0, help="the same for DUN (default: 1)"
    )
    parser.add_argument(
        "--depth-warmup",
        type=int,
        default=0,
        metavar="EPOCHS",
        help="hold q(ℓ) of UDN and DUN still for this many epochs (default: 0)",
    )
    parser.add_argument(
        "--average", type=float, metavar="DECAY", help="average every model's weights over steps"
    )
    parser.add_argument(
        "--schedule", choices=sorted(SCHEDULES), default="constant", help="of the learning rates"
    )
    parser.add_argument(
        "--members", type=int, default=1, help="models in an ensemble, for every model (default: 1)"
    )
    parser.add_argument("--no-references", action="store_true", help="no neighbours, SVM, limit")
    parser.add_argument("--quick", action="store_true", help="a coarse study in a minute or two")
    parser.add_argument("--chunk", type=int, help="networks at a time; all by default")
    parser.add_argument("--resume", action="store_true", help="go on where this was interrupted")
    parser.add_argument("--out", type=Path, default=Path("results/spiral"), help="folder to write")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, score, write results, table and figures; returns the results."""
    settings = settings_of(options)
    parts = options.out / "parts"
    _prepare(parts, settings, options.resume)
    try:
        return _run(settings, parts, options)
    except KeyboardInterrupt:
        kept = f"what is done so far is in {parts}; go on with --resume"
        raise KeyboardInterrupt(kept) from None


def _run(settings: Settings, parts: Path, options: argparse.Namespace) -> dict[str, Any]:
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    start = time.perf_counter()
    runs: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for group in groups(settings):
        done = parts / f"{group.name}.json"
        if options.resume and done.exists():
            part = records.read_json(done)
        else:
            part = _train(group, settings, device, parts, options)
            records.write_json(done, part)
        runs += part["runs"]
        seconds[group.name] = part["seconds"]
    references: list[dict[str, Any]] = []
    if settings.references:
        references = _references(settings, parts / "references.json", options.resume)
    results: dict[str, Any] = {
        "study": "spiral",
        "configuration": dataclasses.asdict(settings),
        "versions": records.versions(device),
        "seconds": {"total": round(time.perf_counter() - start, 1), "training": seconds},
        "summary": spiral_report.summary(runs, references),
        "runs": runs,
        "references": references,
    }
    written = spiral_report.write(options.out, results)
    shutil.rmtree(parts)
    print(spiral_report.table(results))
    print(f"{sum(seconds.values()):.0f} s of training on {results['versions']['device']}; wrote")
    for path in written:
        print(f"  {path}")
    return results


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for, checked."""
    models = list(dict.fromkeys(name for word in options.models for name in _names(word)))
    values: dict[str, Any] = {
        "models": tuple(models),
        "omegas": tuple(options.omegas),
        "lr": tuple(options.lr),
        "init": tuple(dict.fromkeys(options.init)),
        "references": not options.no_references,
    }
    for name in ("seeds", "epochs", "width", "rate", "depth_lr_ratio", "dun_depth_lr_ratio"):
        values[name] = getattr(options, name)
    for name in ("concentrated_rate", "concentration"):
        values[name] = getattr(options, name)
    for name in ("depth_warmup", "average", "schedule", "members"):
        values[name] = getattr(options, name)
    if options.quick:  # what was not asked for otherwise
        usual = Settings(models=())
        coarse = {"omegas": (2.0, 10.0, 18.0, 26.0), "seeds": 2, "epochs": 400}
        values |= {k: v for k, v in coarse.items() if values[k] == getattr(usual, k)}
        if options.models == MODELS:
            values["models"] = _QUICK
    for name in ("seeds", "epochs", "width", "members"):
        if values[name] < 1:
            raise StudyError(f"--{name} must be at least 1, got {values[name]}")
    return Settings(**values)


@dataclass(frozen=True)
class Run:
    """One network of the study, or one ensemble of them."""

    model: str
    init: str
    lr: float
    omega: float
    seed: int

    def data(self, part: str) -> tuple[Tensor, Tensor]:
        """Its part of D(ω)."""
        return spiral(self.omega, ROWS, part=part, seed=self.seed)


@dataclass(frozen=True)
class Group:
    """Networks of one architecture, trained as one population."""

    name: str
    runs: tuple[Run, ...]


def groups(settings: Settings) -> list[Group]:
    """Populations: one for each architecture, all speeds, seeds, rates and depths within it."""
    found: dict[str, list[Run]] = {}
    for init in settings.init:
        for model in settings.models:
            kind = re.sub(r"\d+$", "", model) if model.startswith("omega") else model
            runs = found.setdefault(f"{kind}-{init}", [])
            runs += [
                Run(model, init, lr, omega, seed)
                for lr in settings.lr
                for omega in settings.omegas
                for seed in range(settings.seeds)
            ]
    return [Group(name, tuple(runs)) for name, runs in found.items()]


def build(run: Run, settings: Settings, member: int = 0) -> UDN:
    """The network of a run; the members of an ensemble differ in their seed alone."""
    seed = run.seed + 1000 * member
    init, likelihood = INITS[run.init], Categorical(CLASSES)
    sizes = (2, settings.width, CLASSES)
    if run.model.startswith("dun"):
        make: Callable[..., UDN] = dun if run.model == "dun10" else dun_original
        return make(*sizes, likelihood, init=init, seed=seed)
    depth: DepthFamily
    if run.model == "udn":
        depth = TruncatedPoisson(settings.rate)
    elif run.model == "udn-concentrated":
        depth = TruncatedConwayMaxwell(settings.concentrated_rate, settings.concentration)
    else:
        depth = FixedDepth(int(run.model.removeprefix("omega")))
    return UDN(Dense(*sizes, init=init), likelihood, depth, seed=seed)


def identity(linear: torch.nn.Linear) -> None:
    """He's initialisation where the sizes differ; else the identity, so that a new layer of
    ReLUs hands on what it is given, plus a tenth of He's noise to tell its units apart.
    """
    he(linear)
    if linear.in_features == linear.out_features:
        with torch.no_grad():
            linear.weight.mul_(0.1).add_(torch.eye(linear.in_features))


def _train(
    group: Group, settings: Settings, device: str, parts: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Train a population and score its members on their test parts."""
    count = settings.members
    print(f"{group.name}: {len(group.runs) * count} networks, {settings.epochs} epochs", flush=True)
    start = time.perf_counter()
    models = [build(run, settings, member) for run in group.runs for member in range(count)]
    train, validation, test = _data(group, count)
    is_dun = group.name.startswith("dun")
    checkpoint = parts / f"{group.name}.safetensors"
    before = seconds_so_far(checkpoint) if options.resume else 0.0
    results = fit_population(
        models,
        train,
        validation=validation,
        epochs=settings.epochs,
        batch_size=BATCH,
        lr=[run.lr for run in group.runs for _ in range(count)],
        depth_lr_ratio=settings.dun_depth_lr_ratio if is_dun else settings.depth_lr_ratio,
        schedule=SCHEDULES[settings.schedule](settings.epochs),
        depth_schedule=lambda epoch: float(epoch >= settings.depth_warmup),
        average=settings.average,
        device=device,
        chunk=options.chunk,
        history_every=max(1, settings.epochs // TRACE),
        checkpoint=checkpoint,
        resume=options.resume,
    )
    if any(result.stopped == "interrupted" for result in results):
        raise KeyboardInterrupt
    seconds = round(before + time.perf_counter() - start, 1)
    rows = []
    for index, run in enumerate(group.runs):
        own = slice(index * count, (index + 1) * count)
        rows.append(_score(run, models[own], results[own], test[index * count]))
    print(f"{group.name}: {seconds} s", flush=True)
    return {"seconds": seconds, "runs": rows}


def _data(group: Group, count: int) -> tuple[list[Any], list[Any], list[Any]]:
    """The parts of each network's data; networks with equal data share the tensors."""
    made = {(run.omega, run.seed): tuple(run.data(part) for part in PARTS) for run in group.runs}
    each = [made[run.omega, run.seed] for run in group.runs for _ in range(count)]
    return [e[0] for e in each], [e[1] for e in each], [e[2] for e in each]


def _score(
    run: Run, models: Sequence[UDN], results: Sequence[MemberResult], test: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """The row of one run: test scores of the (averaged) predictive, and the depth."""
    x, y = test
    predictions = [predict(model, x) for model in models]
    mixture = _classes(combine(predictions))
    best = [result.best_row for result in results]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    row: dict[str, Any] = {
        **dataclasses.asdict(run),
        "test_accuracy": float((mixture.classes == y).double().mean()),
        "test_log_score": float(mixture.log_prob(y).double().mean()),
        "val_accuracy": round(mean([b["val_accuracy"] for b in best]), 6),
        "best_epoch": [result.best_epoch for result in results],
        "stopped": sorted({result.stopped for result in results}),
        "depth_mean": round(mean([model.depth.mean() for model in models]), 4),
        "max_depth": max(model.depth.max_depth() for model in models),
    }
    if run.model.startswith("udn"):
        first = _classes(predictions[0])
        by_depth = (first.classes_by_depth == y).float().mean(1)
        row["last_depth_mean"] = round(mean([r.history[-1]["depth_mean"] for r in results]), 4)
        row["depth_probs"] = [round(p, 4) for p in first.depth_log_probs.exp().tolist()]
        row["accuracy_by_depth"] = [round(a, 4) for a in by_depth.tolist()]
        row["depth_trace"] = [round(d, 2) for d in results[0].history["depth_mean"]]
    return row


def _classes(prediction: Prediction) -> ClassPrediction:
    assert isinstance(prediction, ClassPrediction)
    return prediction


def _references(settings: Settings, path: Path, resume: bool) -> list[dict[str, Any]]:
    """Nearest neighbours, SVM and the limit on the same data, on all cores.

    Each data set's rows are written as soon as they are there: all of them take minutes.
    """
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    rows: list[dict[str, Any]] = []
    if resume and path.exists():
        rows = records.read_json(path)["references"]
    done = {(row["omega"], row["seed"]) for row in rows}
    runs = [
        Run("", "", 0.0, omega, seed)
        for omega in settings.omegas
        for seed in range(settings.seeds)
        if (omega, seed) not in done
    ]
    if runs:
        print("references: nearest neighbours, RBF-SVM, the limit", flush=True)
    each = Parallel(n_jobs=-1, prefer="threads", return_as="generator")(
        delayed(_reference_rows)(run) for run in runs
    )
    for pair in each:
        rows += pair
        records.write_json(path, {"references": rows})
    limits = [
        {"model": "bayes", "omega": omega, "seed": None, "test_accuracy": bayes_accuracy(omega)}
        for omega in settings.omegas
    ]
    return rows + limits


def _reference_rows(run: Run) -> list[dict[str, Any]]:
    train, validation, test = (run.data(part) for part in PARTS)
    where = {"omega": run.omega, "seed": run.seed}
    return [
        {
            "model": "nearest-neighbours",
            **where,
            **nearest_neighbours(train, validation, test),
        },
        {"model": "rbf-svm", **where, **rbf_svm(train, validation, test)},
    ]


def _prepare(parts: Path, settings: Settings, resume: bool) -> None:
    """A clean folder for unfinished work, or the one that an interrupted run left."""
    described = records.plain(dataclasses.asdict(settings))
    note = parts / "settings.json"
    if resume and note.exists():
        before = records.read_json(note)
        differing = [k for k in described if before.get(k) != described[k]]
        if differing:
            raise StudyError(
                f"cannot resume: {', '.join(differing)} of the interrupted study differ "
                f"({before.get(differing[0])}, now {described[differing[0]]})"
            )
        return
    if parts.exists():
        shutil.rmtree(parts)
    parts.mkdir(parents=True)
    records.write_json(note, described)


def _names(word: str) -> list[str]:
    """omega1-3 ↦ omega1, omega2, omega3; other names as they are, if there is such a model."""
    match = re.fullmatch(r"omega(\d+)(?:-(\d+))?", word)
    if match:
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if 1 <= first <= last:
            return [f"omega{depth}" for depth in range(first, last + 1)]
    if word in ("udn", "udn-concentrated", "dun10", "dun10-original"):
        return [word]
    raise StudyError(
        f"--models: there is no {word!r}; there are udn, udn-concentrated, omega1, omega2, …, "
        "omega1-10, dun10 and dun10-original"
    )


def _constant(epochs: int) -> None:
    return None


def _cosine(epochs: int) -> Callable[[int], float]:
    """From the full rate to a hundredth of it along half a cosine."""
    return lambda epoch: 0.01 + 0.99 * (1 + math.cos(math.pi * epoch / epochs)) / 2


INITS: dict[str, str | Init] = {"default": "default", "he": "he", "identity": identity}
SCHEDULES: dict[str, Callable[[int], Any]] = {"constant": _constant, "cosine": _cosine}
_QUICK = ("udn", "omega2", "omega4", "omega6", "dun10")
