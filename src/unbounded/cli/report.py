"""`unbounded report`: one page that explains a model."""

import argparse

from unbounded.cli import common, outputs
from unbounded.cli.common import Console
from unbounded.printing import one_line

NAME = "report"
HELP = "write a page that explains a model"
DESCRIPTION = """\
Write one self-contained page: the findings in short, scores, the posterior over depth, the score
at each depth, which columns matter and what was learnt from them, calibration, the uncertainty of
each row split into noise and depth, and how training went. Without a table the page shows what
`unbounded fit` saw on the rows it held out."""
EPILOG = """\
examples:
  unbounded report house.udn --out house.html
  unbounded report house.udn test.csv --out test.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded report`."""
    common.add_out_argument(parser, "the page", required=True)
    common.add_model_arguments(parser, "with the target, to be scored on")


def run(options: argparse.Namespace) -> None:
    """Score if there is a table, then write."""
    console = Console(options)
    model, table = common.open_model(options, outputs.PAGE)
    shown = model.report(options.out, table, progress=console.shows_progress)
    console.say(f"page: {one_line(options.out)}")
    console.result(
        {
            "report": options.out,
            "model": options.model,
            "table": options.table,
            "scores": shown.get("scores"),
            "importance": shown.get("importance"),
            "effects": shown.get("effects"),
        }
    )
