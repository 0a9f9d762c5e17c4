"""`unbounded evaluate`: scores on a table whose target is known."""

import argparse

from unbounded.cli import common, outputs
from unbounded.cli.common import Console
from unbounded.printing import one_line
from unbounded.tables.text import count_of

NAME = "evaluate"
HELP = "score a model on a table"
DESCRIPTION = """\
Score a model on the rows of a table whose target is known.

For classes: accuracy, log score (mean log probability of what came), Brier score, expected
calibration error (ECE, 15 bins), area under the risk–coverage curve (AURC), area under the ROC
curve (each class against the rest), F1, precision and recall (these four are means over the
classes, each with the same weight: macro), and the confusion matrix. For a number: RMSE, MAE, R²,
negative log-likelihood in nats (NLL), continuous ranked probability score (CRPS), and how many
targets the central 50, 90 and 95 % intervals hold. A line says how much of the uncertainty is
noise and how much is disagreement between depths."""
EPILOG = """\
examples:
  unbounded evaluate house.udn test.csv
  unbounded evaluate house.udn test.csv --out calibration.html
  unbounded evaluate house.udn test.csv --json > scores.json
"""
_SHOWN_CLASSES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded evaluate`."""
    common.add_out_argument(parser, "also write a page with the reliability plot")
    common.add_model_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Score chunk by chunk, print, write the page."""
    from unbounded.tables.findings import uncertainty_split

    console = Console(options)
    model, table = common.open_model(options, outputs.PAGE)
    found = model.summarize(table, progress=console.shows_progress)
    target, without = model.target, found["rows_without_target"]
    heading = f"on {count_of(found['rows'], 'row')}"
    console.say(common.score_table(found["scores"], {}, target.is_classes, heading))
    if without:
        console.say(f"({count_of(without, 'row')} without a target left out)")
    split = uncertainty_split(found)
    if split:
        console.say(split)
    if target.is_classes:
        console.say("\n" + _confusion(found["confusion"], target.classes))
    if options.out is not None:
        from unbounded.report.page import write
        from unbounded.tables.pages import evaluation_page

        write(options.out, evaluation_page(model, found, table.name))
        console.say(f"\npage: {one_line(options.out)}")
    confusion = {"classes": target.classes, "confusion": found.get("confusion")}
    console.result(
        {
            "model": options.model,
            "table": options.table,
            "rows": found["rows"],
            "rows_without_target": without,
            "task": target.task,
            "target": target.name,
            "scores": found["scores"],
            "uncertainty": {
                name: found["uncertainty"][name]
                for name in ("noise_mean", "depth_mean", "depth_share")
            },
            "calibration": found["calibration"],
            "by_depth": dict(zip(found["depths"], found["by_depth"], strict=True)),
            **(confusion if target.is_classes else {}),
            "report": options.out,
        }
    )


def _confusion(matrix: list[list[int]], classes: list[str]) -> str:
    """True classes down, predicted ones across."""
    if len(classes) > _SHOWN_CLASSES:
        return f"(a confusion matrix of {len(classes)} classes: see --json or --out)"
    rows = [["true \\ predicted", *classes]]
    rows += [[name, *map(str, row)] for name, row in zip(classes, matrix, strict=True)]
    return common.columns_of_text(rows, right=range(1, len(classes) + 1))
