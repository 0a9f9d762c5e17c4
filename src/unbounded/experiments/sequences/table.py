"""Table and figures of a sequence study: `python -m unbounded.experiments.sequences.table FOLDER`.

Reads NAME.json of each network in FOLDER, and writes `table.md`, `depths.svg` and `text.svg`.
"""

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unbounded.experiments import records
from unbounded.experiments.pages import markdown_table, plus_minus, publish, rewrite
from unbounded.experiments.sequences import figures

Row = dict[str, Any]
HEAD = (
    *("problem", "depth that is enough", "best fixed depth", "its score", "smallest as good"),
    *("UDN", "E[ℓ]", "mode", "seconds of the UDN", "of a search", "ratio"),
)
AS_GOOD = 0.01
"""Depths within this of the best, in error or as a share of its bits, are as good."""


def read(folder: Path) -> list[dict[str, Any]]:
    """The files of the networks."""
    return records.read_study(folder, "sequences", "sequence study")


def write(folder: Path) -> str:
    """Write the table and the figures of the results in a folder; returns `table.md`."""
    documents = read(folder)
    rows = [document["run"] for document in documents]
    settings = [document["configuration"] for document in documents]
    loud = ""
    if any(one != settings[0] for one in settings):
        loud = "These networks are of several runs with different settings."
    drawings: dict[str, Any] = {
        "depths.svg": (partial(figures.depths, rows=rows), figures.size(rows)),
        "text.svg": (partial(figures.text, rows=rows), figures.SIZE),
    }
    return publish(folder, as_markdown(rows, documents[0]), drawings, loud)


def as_markdown(rows: Sequence[Row], document: dict[str, Any]) -> str:
    """The page."""
    cells = [line for name in figures.problems(rows) if (line := _cells(rows, name)) is not None]
    settings, versions = document["configuration"], document["versions"]
    text = (
        f"Width {settings['width']}, {settings['heads']} heads of attention, "
        f"{settings['steps']} batches of {settings['rows']} fresh sequences "
        f"({settings['text_steps']} on text), seeds {', '.join(map(str, settings['seeds']))}; "
        f"on {versions['device']}, torch {versions['torch']}.\n\n"
        "Scores are errors a token on fresh sequences, of text bits a character on its last part. "
        "A search trains every fixed depth once. The smallest as good is the least depth whose "
        f"score is within {AS_GOOD:g} of the best (of bits, within {AS_GOOD:.0%}).\n\n"
    )
    return text + markdown_table(HEAD, cells)


def _cells(rows: Sequence[Row], name: str) -> list[str] | None:
    """The line of one problem; None without a UDN."""
    mine = [row for row in rows if row["name"] == name]
    udn = [row for row in mine if row["model"] == "udn"]
    fixed = figures.by_depth(mine)
    if not udn:
        return None
    needed = mine[0].get("needed")
    scores, depths = [score(row) for row in udn], [row["depth_mean"] for row in udn]
    modes = sorted({row["depth_mode"] for row in udn})
    seconds = statistics.fmean(row["seconds"] for row in udn)
    cells = [mine[0]["about"], "–" if needed is None else str(needed)]
    if fixed:
        means = {depth: statistics.fmean(map(score, of)) for depth, of in fixed.items()}
        best = min(means, key=means.__getitem__)
        slack = AS_GOOD * (means[best] if mine[0]["task"] == "text" else 1)
        least = min(depth for depth, mean in means.items() if mean <= means[best] + slack)
        search = sum(statistics.fmean(row["seconds"] for row in of) for of in fixed.values())
        cells += [str(best), f"{means[best]:.4f}", str(least)]
        costs = [f"{search:.0f}", f"{seconds / search:.2f}" if search else "–"]
    else:
        cells, costs = [*cells, "–", "–", "–"], ["–", "–"]
    return [
        *cells,
        plus_minus(statistics.fmean(scores), _error(scores), 4),
        plus_minus(statistics.fmean(depths), _error(depths), 2),
        ", ".join(map(str, modes)),
        f"{seconds:.0f}",
        *costs,
    ]


def score(row: Row) -> float:
    """Bits of text, errors of the rest: less is better."""
    found: float = row["bits"] if row["task"] == "text" else row["error"]
    return found


def _error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


main = partial(rewrite, write, __doc__, "folder with NAME.json of each network")

if __name__ == "__main__":
    sys.exit(main())
