"""`unbounded play`: a page in which one watches depth grow."""

import argparse
import webbrowser
from pathlib import Path

from unbounded.cli import common, outputs
from unbounded.cli.common import Console

NAME = "play"
HELP = "write a page that trains in the browser, and open it"
DESCRIPTION = """\
Write a page in which a network finds its depth before one's eyes, and open it. Spirals, circles or
points of one's own; the decision, q(ℓ) and the layers that are born, epoch by epoch; the library's
rule for depth, or the paper's. It trains in the browser itself and needs no network."""
EPILOG = """\
examples:
  unbounded play
  unbounded play --out spiral.html --no-browser
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded play`."""
    words = "the page (default: playground.html)"
    common.add_out_argument(parser, words, default=Path("playground.html"))
    parser.add_argument("--no-browser", action="store_true", help="write the page, open nothing")
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Write the page and open it."""
    from unbounded import atomic, play

    console = Console(options)
    path = play.write(outputs.check_output(options, options.out, outputs.PAGE))
    is_file = atomic.descriptor(path) is None
    opened = is_file and not options.no_browser and webbrowser.open(path.resolve().as_uri())
    console.say(
        f"page: {path}" if opened or not is_file else f"page: {path} (open it in a browser)"
    )
    console.result({"page": path, "opened": opened})
