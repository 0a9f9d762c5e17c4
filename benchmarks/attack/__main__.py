"""`python -m benchmarks.attack`: damaged files, kills, signals, races and hostile tables.

Every attack is drawn from a seed, so that each case can be run again by its number. The table says
how many cases there were and how many broke a promise; the exit status is 1 if any did.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

# Processes fork from this one, which a GPU's threads would not survive.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

import unbounded
from benchmarks.attack.rows import ROWS, Plan, Row
from unbounded import atomic


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(ROWS)
    parser.add_argument("only", nargs="*", metavar="ATTACK", help=f"some of {names}")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (default: 0)")
    words = "only these, as the words on a broken promise name them"
    parser.add_argument("--case", type=int, nargs="+", default=[], metavar="N", help=words)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases to run")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--keep", type=Path, help="folder for what broke a promise")
    options = parser.parse_args()
    unknown = set(options.only) - set(ROWS)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {names}")
    torch.set_num_threads(1)
    rows: list[Row] = []
    print(f"{'attack':58} {'cases':>7} {'broken':>7} {'seconds':>8}")
    for name, attack in ROWS.items():
        if options.only and name not in options.only:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(dir=options.keep) as folder:
            plan = Plan(options.scale, tuple(options.case))
            found = attack(Path(folder), options.seed, plan, options.workers)
        spent = time.monotonic() - begun
        for row in found:
            rows.append(row)
            print(f"{row.name:58} {row.cases:7,} {row.broken:7,} {spent:8.1f}", flush=True)
            for fault in row.faults[:5]:
                print(f"    {fault}", file=sys.stderr)
    if options.out is not None:
        atomic.write_text(options.out, _json(options, rows))
    return 1 if any(row.broken for row in rows) else 0


def _json(options: argparse.Namespace, rows: list[Row]) -> str:
    document = {
        "seed": options.seed,
        "scale": options.scale,
        "unbounded": unbounded.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "attacks": [row._asdict() for row in rows],
    }
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
