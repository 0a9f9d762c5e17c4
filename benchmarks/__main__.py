"""`python -m benchmarks`: every figure of the core, its ratio and whether it holds."""

import argparse
import json
import os
import platform
import sys

import torch

from benchmarks.core import FIGURES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [figure.__name__ for figure in FIGURES]
    parser.add_argument("only", nargs="*", metavar="FIGURE", help=f"some of {', '.join(names)}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads",
        file=sys.stderr,
    )
    results = []
    header = f"{'figure':38} {'ours':>11} {'reference':>11} {'ratio':>8} {'target':>7}  holds"
    if not options.json:
        print(header)
        print("-" * len(header))
    for figure in FIGURES:
        if options.only and figure.__name__ not in options.only:
            continue
        result = figure()
        results.append(result)
        if not options.json:
            times = (f"{1e3 * t:9.2f} ms" for t in (result.ours, result.reference))
            ours, reference = times
            print(
                f"{result.name:38} {ours:>11} {reference:>11} {result.ratio:8.2f} "
                f"{result.target:>7}  {'yes' if result.holds else 'NO'}",
                flush=True,
            )
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=1))
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
