"""`unbounded evaluate`: scores on a table whose target is known."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.cli import common
from unbounded.cli.common import Console, several

if TYPE_CHECKING:
    from unbounded.cli.model_file import TableModel
    from unbounded.data.tables import Table

NAME = "evaluate"
HELP = "score a model on a table"
DESCRIPTION = """\
Score a model on the rows of a table whose target is known.

For classes: accuracy, log score (mean log probability of what came), Brier score, expected
calibration error (ECE, 15 bins), area under the risk–coverage curve (AURC) and the confusion
matrix. For a number: RMSE, MAE, R², negative log-likelihood in nats (NLL), continuous ranked
probability score (CRPS), and how many targets the central 50, 90 and 95 % intervals hold."""
EPILOG = """\
examples:
  unbounded evaluate house.udn test.csv
  unbounded evaluate house.udn test.csv --out calibration.html
  unbounded evaluate house.udn test.csv --json > scores.json
"""
_SHOWN_CLASSES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded evaluate`."""
    parser.add_argument("model", type=Path, help="what `unbounded fit` wrote")
    parser.add_argument("table", type=Path, help="CSV, TSV or Parquet, plain or gzipped")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write a page with the reliability plot"
    )
    common.add_device_argument(parser)
    common.add_table_arguments(parser)
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Score chunk by chunk, print, write the page."""
    from unbounded.cli.model_file import TableModel
    from unbounded.cli.scores import score_rows

    console = Console(options)
    if options.out is not None:
        common.check_output(options.out, options.table, options.model)
    device = common.check_device(options.device)
    model = TableModel.load(options.model, device)
    table = common.open_table(options, options.table, model.encoding.missing)
    found, _, _, without = score_table(model, table, console)
    target = model.target
    heading, *rows = score_rows({"unbounded depth": found["scores"]}, target.is_classes)
    heading[0] = f"on {several(found['rows'], 'row')}"
    console.say(common.columns_of_text([heading, *rows], right=range(1, len(heading))))
    if without:
        console.say(f"({several(without, 'row')} without a target left out)")
    if target.is_classes:
        console.say("\n" + _confusion(found["confusion"], target.classes))
    if options.out is not None:
        from unbounded.cli.pages import evaluation_page
        from unbounded.report.page import write

        write(options.out, evaluation_page(model, found, table.path.name))
        console.say(f"\npage: {options.out}")
    console.result(
        {
            "model": options.model,
            "table": options.table,
            "rows": found["rows"],
            "rows_without_target": without,
            "task": target.task,
            "target": target.name,
            "scores": found["scores"],
            "calibration": found["calibration"],
            "by_depth": dict(zip(found["depths"], found["by_depth"], strict=True)),
            **(
                {"classes": target.classes, "confusion": found["confusion"]}
                if target.is_classes
                else {}
            ),
            "report": options.out,
        }
    )


def score_table(
    model: "TableModel", table: "Table", console: Console, sample: int = 1000
) -> tuple[dict[str, Any], Any, Any, int]:
    """The summary of a table; some encoded rows with targets; rows without a target.

    Args:
        model: the model.
        table: with the target.
        console: for the progress bar.
        sample: how many of the rows are kept, evenly from all of them, for what needs rows.
    """
    from unbounded.cli.scores import Scorer
    from unbounded.data.tables import TableError, closest

    target = model.target
    if target.name not in table.names:
        hint = closest(target.name, table.names)
        raise TableError(f"{table.path} has no column {target.name!r}, the target: {hint}")
    scorer = Scorer(target.is_classes)
    without = 0
    kept_x, kept_y, kept_key = [], [], []
    random = np.random.default_rng(0)
    with console.progress("scoring", table.num_rows) as progress:
        for start, frame, x in model.chunks(table, progress):
            y = target.read(frame[target.name], start)
            there = ~np.isnan(y)
            without += int((~there).sum())
            x, y = x[there], y[there]
            scorer.add(y, model.by_depth(x)) if len(y) else None
            # The rows with the smallest random keys so far: an even sample of a stream.
            key = random.random(len(y))
            chosen = np.argsort(key)[:sample]
            kept_x.append(x[chosen])
            kept_y.append(y[chosen])
            kept_key.append(key[chosen])
    if scorer.rows == 0:
        raise TableError(f"{table.path} has no rows with a target {target.name!r}")
    rows = np.argsort(np.concatenate(kept_key), kind="stable")[:sample]
    x, y = np.concatenate(kept_x)[rows], np.concatenate(kept_y)[rows]
    return scorer.summary(model), x, y, without


def _confusion(matrix: list[list[int]], classes: list[str]) -> str:
    """True classes down, predicted ones across."""
    if len(classes) > _SHOWN_CLASSES:
        return f"(a confusion matrix of {len(classes)} classes: see --json or --out)"
    rows = [["true \\ predicted", *classes]]
    rows += [[name, *map(str, row)] for name, row in zip(classes, matrix, strict=True)]
    return common.columns_of_text(rows, right=range(1, len(classes) + 1))
