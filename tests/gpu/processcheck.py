"""Do two processes on one GPU train as one does? `python -m tests.gpu.processcheck`.

NCCL refuses two processes on one GPU, so gloo carries the messages. Compares runs with births and
a smaller support, by every option of tests/several.py and, with layers in shards, tests/sharded.py;
then the memory that each of two processes needs for wide layers in shards. Prints one line a check
and exits with 1 if one fails. `--device cpu` does the same without a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
LIMIT = 1e-10
WIDTH, DEPTH = 2048, 6


def main(arguments: list[str] | None = None) -> int:
    """Run all checks; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the layers that are weighed")
    parser.add_argument("--only", nargs="+", help="names of runs; all by default")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ["TEST_DEVICE"] = options.device
    sys.path[:0] = [str(TESTS)]
    if options.worker:
        work(options)
        return 0
    print(f"torch {torch.__version__} on {options.device}")
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one"), Path(folder, "two")
        good = launch(1, one, options) & launch(2, two, options)
        if good:
            good = compare(*(torch.load(p / "found.pt", weights_only=False) for p in (one, two)))
    print("all checks passed" if good else "a check FAILED")
    return 0 if good else 1


def launch(size: int, folder: Path, options: argparse.Namespace) -> bool:
    """The work in so many processes, each of which writes what went wrong."""
    from test_processes import variables

    folder.mkdir()
    command = [sys.executable, str(Path(__file__)), "--worker", str(folder)]
    command += ["--device", options.device, "--width", str(options.width)]
    command += ["--only", *options.only] if options.only else []
    given = variables(size, timeout=120)
    started = [
        subprocess.Popen(command, env=given | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]
    statuses = [one.wait() for one in started]  # all of them, whatever the first says
    return not any(statuses)


def work(options: argparse.Namespace) -> None:
    """What each process does; the first one writes what they found."""
    import several
    import sharded
    from unbounded import parallel

    names = [("run", name) for name in several.OPTIONS if name not in several.OWN]
    names += [("shards", name) for name in sharded.RUNS]
    found = {}
    for kind, name in names:
        if options.only and name not in options.only:
            continue
        title = f"{kind} {name}"
        try:
            found[title] = several.train(name) if kind == "run" else sharded.run(name, True)
        except Exception as error:
            found[title] = f"{type(error).__name__}: {error}"
    try:
        found["bytes"] = parallel.current().gather(weigh(options))
    except Exception as error:
        found["bytes"] = f"{type(error).__name__}: {error}"
    if parallel.rank() == 0:
        torch.save(found, options.worker / "found.pt")


def weigh(options: argparse.Namespace) -> list[int]:
    """Bytes of parameters and moments of wide layers; of the GPU's memory, which has more in it."""
    import sharded
    import unbounded as ub

    counted = sharded.Bytes()
    layers = ub.PreNormDense(64, options.width, 1)
    model = ub.UDN(layers, ub.Gaussian(), ub.FixedDepth(DEPTH), seed=0).to(options.device)
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    settings = {"shard": True, "epochs": 2, "batch_size": 128, "progress": False}
    ub.fit(model, x, x[:, :1], callbacks=[counted], **settings)
    on_gpu = torch.cuda.memory_allocated() if options.device.startswith("cuda") else 0
    return [counted.found[0], counted.found[1], on_gpu]


def compare(one: dict, two: dict) -> bool:
    """A line for each run."""
    from test_processes import apart

    good = True
    for name in one:
        if name == "bytes":
            continue
        texts = [found[name] for found in (one, two) if isinstance(found[name], str)]
        if texts:
            print(f"FAIL {name}: {texts[0]}")
            good = False
            continue
        births = min(len(births) for births in one[name]["births"])
        depths = [row["max_depth"] for row in one[name]["rows"][0]]
        shrinks = any(b < a for a, b in pairwise(depths))
        gap = apart(one[name], two[name], name)
        fine = gap <= LIMIT and births >= 3 and shrinks
        good &= fine
        print(f"{'ok' if fine else 'FAIL'} {name}: {gap:.1e} apart, {births} births")
    if isinstance(two["bytes"], str) or isinstance(one["bytes"], str):
        print(f"FAIL bytes: {json.dumps(two['bytes'])}")
        return False
    for rank, (own, whole, on_gpu) in enumerate(two["bytes"]):
        share = own / whole
        good &= share <= 0.6
        alone = one["bytes"][0][2]
        rest = f", {on_gpu / alone:.2f} of the GPU's memory of one process" if alone else ""
        words = f"{share:.3f} of the parameters and moments{rest}"
        print(f"{'ok' if share <= 0.6 else 'FAIL'} shards: process {rank} holds {words}")
    return good


if __name__ == "__main__":
    sys.exit(main())
