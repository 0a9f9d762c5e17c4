"""What a UDN takes beside a search over all depths, when one network trains after the other.

    python -m benchmarks.search [FOLDER] [--data FOLDER] [--problems NAME …] [--rounds 5]

FOLDER has the depth suite's results (results/depth). The suite trains populations, whose networks
share the time of the deepest; here each network trains alone on one core, as people train them. On
each problem, epochs of networks of some fixed depths and of UDNs whose q(ℓ) is held at some depths
are timed in turn, with and without a look after each epoch; the fastest round of each counts. Lines
through the times of each kind, the layers that the suite's runs have used and the epochs at which
their q came to rest give the seconds of a UDN over those of all fixed depths. Lines go to
FOLDER/seconds.json, from which the suite's table is then written anew.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import run_epoch, trainer_of
from unbounded.depth import TruncatedNormal
from unbounded.engines import Eager
from unbounded.experiments import records
from unbounded.experiments.depth import recipe, table
from unbounded.experiments.depth.problems import PROBLEMS, Problem
from unbounded.experiments.depth.recipe import Run, Settings
from unbounded.training import HeldOutAscent
from unbounded.training.best import BestEpoch
from unbounded.training.trainer import Trainer

KINDS = {"fixed": (1, 4, 8, 16), "udn": (2, 4, 8, 14), "resting": (2, 4, 8, 14)}
"""Depths that are timed."""
_OPTIONS = ("schedule", "average", "clip", "depth_rule", "history_every")
_BEST = (float("inf"), float("inf"))


class NoLooks(HeldOutAscent):
    """Between two looks."""

    def is_due(self, epoch: int) -> bool:
        return False


def trainer(problem: Problem, depth: int, kind: str, data: Path | None) -> Trainer:
    """A network of one depth, or a UDN whose q ends there, in the middle of its training."""
    settings = Settings()
    parts, is_fixed = problem.data(settings.seeds[0], data), kind == "fixed"
    length = 1 if is_fixed else settings.long
    which = ("fixed", depth, None) if is_fixed else ("udn", None, settings.start)
    run = Run(problem.name, *which, length, settings.seeds[0])
    options = recipe.fitting(problem, run, len(parts.train[1]), settings)
    model = recipe.build(run, parts, settings)
    if isinstance(model.depth, TruncatedNormal):  # a caution that leaves q at its reference
        at = depth - 0.8, 0.5
        model.depth.put(*at)
        options["depth_rule"] = HeldOutAscent(reference=at, caution=1e9)
        if kind == "resting":
            options["depth_rule"] = NoLooks(reference=at)
            options["depth_rule"].rest()
    found = trainer_of(
        model,
        parts.train,
        Eager(),
        {"val": parts.validation},
        batch_size=options["batch_size"],
        lr=options["lr"],
        **{name: options[name] for name in _OPTIONS if name in options},
    )
    run_epoch(found)
    assert found.members[0].row["max_depth"] == depth
    # Few epochs of a long training are better than all before them.
    found.members[0].best = BestEpoch(1, _BEST, found.members[0].row, _BEST)
    found.epoch = options["epochs"] // 2
    return found


def milliseconds(one: Trainer, epochs: int) -> float:
    """An epoch's processor time, on average."""
    first, start = one.epoch, time.process_time()
    for _ in range(epochs):
        run_epoch(one)
    one.epoch = first
    return 1e3 * (time.process_time() - start) / epochs


def measured(problem: Problem, data: Path | None, rounds: int, seconds: float) -> dict[str, Any]:
    """Times by layers of all kinds, and lines through them."""
    trainers = {
        (kind, depth): trainer(problem, depth, kind, data)
        for kind, depths in KINDS.items()
        for depth in depths
    }
    epochs = max(2, round(1e3 * seconds / milliseconds(trainers["udn", KINDS["udn"][-1]], 2)))
    best = dict.fromkeys(trainers, float("inf"))
    for _ in range(rounds):
        for key, one in trainers.items():
            best[key] = min(best[key], milliseconds(one, epochs))
    found: dict[str, Any] = {}
    for kind, depths in KINDS.items():
        times = [best[kind, depth] for depth in depths]
        slope, constant = statistics.linear_regression(depths, times)
        found[kind] = [round(constant, 4), round(slope, 4)]
        found[f"{kind} by layers"] = {
            str(d): round(t, 3) for d, t in zip(depths, times, strict=True)
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results/depth"))
    parser.add_argument("--data", type=Path, help="folder with NAME.npz of the UCI sets")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="all of FOLDER by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a UDN's part of a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.folder / table.PACES
    kept = records.read_json(path)["problems"] if path.exists() else {}
    for document in table.read(options.folder):
        name = document["problem"]["name"]
        if options.problems is not None and name not in options.problems:
            continue
        one = measured(PROBLEMS[name], options.data, options.rounds, options.seconds)
        kept[name] = one
        verdict = table.verdict_of(document, table.pace(one))
        lines = (f"{kind} {one[kind][0]:6.2f} + {one[kind][1]:5.2f} ℓ" for kind in KINDS)
        line = f"{name:22} {', '.join(lines)} ms an epoch"
        if verdict is not None:
            longer = "" if verdict.longer is None else f", longer {verdict.longer.seconds:.2f}"
            line += f"; of the search: {verdict.seconds:.2f}{longer}"
        print(line, flush=True)
        versions = records.versions("cpu")
        records.write_json(path, {"study": "depth-seconds", "versions": versions, "problems": kept})
    table.write(options.folder)


if __name__ == "__main__":
    main()
