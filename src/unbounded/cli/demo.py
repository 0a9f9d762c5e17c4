"""`unbounded demo`: a spiral, a network that finds its depth, a page."""

import argparse
import contextlib
import sys
from pathlib import Path

from unbounded import interrupts
from unbounded.cli import common, outputs
from unbounded.cli.common import Console

NAME = "demo"
HELP = "fit a spiral and write a page"
DESCRIPTION = """\
Fit a network of unbounded depth to the paper's spiral, show the posterior over depth, and write a
page. Takes less than a minute; Ctrl-C ends training early and still writes the page."""
EPILOG = """\
examples:
  unbounded demo
  unbounded demo --omega 20 --epochs 4000 --out spiral.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded demo`."""
    common.add_out_argument(parser, "the page", default=Path("report.html"))
    parser.add_argument(
        "--omega", type=float, default=10.0, help="rotation speed of the spiral (default: 10)"
    )
    parser.add_argument("--epochs", type=common.positive, help="how long to train")
    common.add_preset_argument(parser, "settled")
    parser.add_argument(
        "--seed", type=common.not_negative, default=0, help="of data and weights (default: 0)"
    )
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run `unbounded.experiments.demo`."""
    from unbounded.experiments.demo import EPOCHS
    from unbounded.experiments.demo import run as run_demo

    console = Console(options)
    outputs.check_output(options, options.out, outputs.PAGE)
    # What the demo says goes where the words of a command go.
    words = None if console.quiet else sys.stderr if console.words_aside else sys.stdout
    with (
        interrupts.deferred(),  # also what comes after training is done to its end
        common.told_warnings(console),
        contextlib.redirect_stdout(words),
    ):
        found = run_demo(
            options.out,
            omega=options.omega,
            seed=options.seed,
            epochs=options.epochs or EPOCHS,
            recipe=options.preset,
            progress=console.shows_progress,
        )
    console.result(
        {
            "report": options.out,
            "accuracy": found.accuracy,
            "accuracy_by_depth": found.accuracy_by_depth,
            "depth": {
                "probs": found.depth_probs,
                "mean": found.depth_mean,
                "max": found.max_depth,
            },
            "seconds": found.fit.seconds,
        }
    )
