"""Several processes against one: what they cost, what they gain, what they send.

    python -m benchmarks.processes [--rounds 2] [--width 1024] [--rows 4096] [--depth 10]

Every line is a ratio within one run, of a step with one thread a process:

- one process that torchrun started against one that it did not; at most 1.03 is asked for;
- one process against two that share each batch; at least 1.7;
- bytes sent a step against those of the active parameters (a ring sends and receives each
  2(P−1)/P times); at most 1.05;
- seconds of a step with two processes against what the model of docs/scaling.md says;
- bytes of parameters and moments that each of two processes holds with layers in shards, against
  those of one; at most 0.6. And seconds of such a step against one without shards.

Wall time is the best step. On a machine that is busy with other things look at processor time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import unbounded as ub
from unbounded import parallel
from unbounded.engines import Eager
from unbounded.parallel import shards

ROOT = Path(__file__).parents[1]


class Timed(Eager):
    """Notes the wall and processor time of every step, and what it sent."""

    def start(self, task):
        super().start(task)
        self.wall, self.cpu, self.sent = [], [], 0

    def step(self, grow):
        wall, cpu = time.perf_counter(), time.process_time()
        more = super().step(grow)
        if more:
            self.wall.append(time.perf_counter() - wall)
            self.cpu.append(time.process_time() - cpu)
            exchange = self.task.processes.exchange(self.members[0].model)
            self.held = held_bytes(self.members[0])
            self.sent = 0 if exchange is None else exchange.sent_bytes
        return more


def held_bytes(member) -> int:
    """Of parameters and of what the optimiser keeps of them, in this process."""
    tensors = list(member.model.parameters())
    tensors += [t for state in member.optimizer.state.values() for t in state.values()]
    return sum(shards.local(t).untyped_storage().nbytes() for t in tensors)


def work(options: argparse.Namespace) -> None:
    """What each process does; the first one prints a line of JSON."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.rows, 64, generator=generator)
    y = x[:, 0] * x[:, 1]
    model = ub.UDN(
        ub.Dense(64, options.width, 1), ub.Gaussian(), ub.FiniteDepth(options.depth), seed=0
    )
    engine = Timed()
    settings = {"batch_size": options.rows, "epochs": options.steps, "progress": False}
    settings["shard"] = options.shard
    ub.fit(model, x, y, engine=engine, lr=1e-4, **settings)
    active = sum(p.numel() * p.element_size() for p in model.parameters())
    found = {
        "wall": min(engine.wall),
        "cpu": min(engine.cpu),
        "sent": engine.sent,
        "held": engine.held,
        "active": active,
        "reduce": _all_reduce_seconds(active) if parallel.current().size > 1 else 0.0,
    }
    if parallel.rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)


def _all_reduce_seconds(count: int) -> float:
    """Seconds to sum so many bytes over all processes, with nothing else to do."""
    flat, best = torch.zeros(count // 4), float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        parallel.current().sum(flat)
        best = min(best, time.perf_counter() - begun)
    return best


def launch(size: int | None, options: argparse.Namespace, shard: bool = False) -> dict[str, float]:
    """The work in so many processes; None: one, without torchrun."""
    numbers = [f"--{name}={getattr(options, name)}" for name in ("steps", "width", "rows", "depth")]
    command = [sys.executable]
    if size is not None:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command += ["-m", "benchmarks.processes", "--worker", *numbers]
    command += ["--shard"] if shard else []
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    known = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ended = subprocess.run(
        command, env=os.environ | known, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    line = next(line for line in ended.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
    return found


def best_of(options: argparse.Namespace) -> list[dict[str, float]]:
    """No torchrun, one process, two, two in shards: in turn, so that noise hits all; the best."""
    kinds = ((None, False), (1, False), (2, False), (2, True))
    best: list[dict[str, float]] = [{} for _ in kinds]
    for _ in range(options.rounds):
        for kept, (size, shard) in zip(best, kinds, strict=True):
            found = launch(size, options, shard)
            kept |= {name: min(value, kept.get(name, value)) for name, value in found.items()}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4096, help="of the global batch")
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    plain, one, two, sharded = best_of(options)
    print(f"width {options.width}, batch {options.rows}, {options.depth} depths; seconds a step")
    print(f"{'':34} {'wall':>8} {'processor':>10}")
    names = ("one process", "one, by torchrun", "two processes", "two, layers in shards")
    for name, found in zip(names, (plain, one, two, sharded), strict=True):
        print(f"{name:34} {found['wall']:8.3f} {found['cpu']:10.3f}")
    rows = [
        ("overhead of torchrun", one, plain, "at most 1.03"),
        ("one against two", plain, two, "at least 1.7"),
        ("shards against none", sharded, two, ""),
    ]
    for name, above, below, wanted in rows:
        wall, cpu = above["wall"] / below["wall"], above["cpu"] / below["cpu"]
        print(f"{name:34} {wall:8.3f} {cpu:10.3f}  {wanted}")
    bytes_ratio = two["sent"] / two["active"]
    print(f"{'bytes sent / active parameters':34} {bytes_ratio:8.4f} {'':10}  at most 1.05")
    said = plain["wall"] / 2 + two["reduce"]
    print(f"{'step of two / model of its cost':34} {two['wall'] / said:8.3f}")
    share = sharded["held"] / plain["held"]
    print(f"{'bytes held in shards / of one':34} {share:8.4f} {'':10}  at most 0.6")
    print(f"(summing {two['active'] / 1e6:.0f} MB alone takes {two['reduce']:.3f} s)")


if __name__ == "__main__":
    main()
