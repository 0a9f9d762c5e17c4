"""The command line, `unbounded …`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="unbounded", description="Neural networks whose depth is inferred from the data."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="fit a spiral and write a report")
    demo.add_argument("--out", type=Path, default=Path("report.html"), help="the page to write")
    demo.add_argument("--seed", type=int, default=0, help="of data and weights")
    options = parser.parse_args(arguments)
    from unbounded.experiments.demo import run

    run(options.out, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
