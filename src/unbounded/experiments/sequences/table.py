"""Table and figures of a sequence study: `python -m unbounded.experiments.sequences.table FOLDER`.

Reads NAME.json of each network in FOLDER, and benchmark.json, if `python -m benchmarks.sequences`
wrote one there; writes `table.md`, `hops.svg`, `words.svg`, `text.svg` and `data.svg`.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unbounded.experiments import records
from unbounded.experiments.pages import SUBSCRIPTS, markdown_table, plus_minus, publish, rewrite
from unbounded.experiments.sequences import figures
from unbounded.experiments.sequences.recipe import OLD, matters
from unbounded.experiments.sequences.verdicts import (
    Judged,
    by_depth,
    judged,
    problems,
    score,
    verdicts,
)

Row = dict[str, Any]
BENCHMARK = "benchmark.json"
_ANSWERS = {True: "yes", False: "**no**", None: "–"}


def read(folder: Path) -> list[dict[str, Any]]:
    """The files of the networks."""
    return records.read_study(folder, "sequences", "sequence study")


def write(folder: Path) -> str:
    """Write the table and the figures of the results in a folder; returns `table.md`."""
    documents = read(folder)
    rows = [{**one["run"], "device": one["versions"]["device"]} for one in documents]
    several = _several(documents)
    loud = f"These networks are of runs with different settings: {several}." if several else ""
    timed = folder / BENCHMARK
    benchmark = records.read_json(timed) if timed.exists() else None
    panels = {"hops.svg": "hops", "words.svg": "words"}
    drawings: dict[str, Any] = {
        name: (partial(figures.depths, rows=rows, task=task), figures.size(rows, task))
        for name, task in panels.items()
    }
    drawings["text.svg"] = (partial(figures.text, rows=rows), figures.SIZE)
    drawings["data.svg"] = (partial(figures.data, rows=rows), figures.SIZE)
    return publish(folder, as_markdown(rows, documents[0], benchmark), drawings, loud)


def _several(documents: Sequence[Row]) -> str:
    """Names of the settings that networks depend on and do not have in common."""
    first, found = dict[str, Any](), dict[str, None]()
    for document in documents:
        settings, run = OLD | document["configuration"], document["run"]
        for name in matters(run["task"], run["model"]):
            if first.setdefault(name, settings.get(name)) != settings.get(name):
                found[name] = None
    return ", ".join(found)


def _elsewhere(rows: Sequence[Row], versions: Row) -> str:
    """Which networks were trained on another machine."""
    found = [row for row in rows if row.get("device", versions["device"]) != versions["device"]]
    names = ", ".join(f"{row['name']} of seed {row['seed']}" for row in found)
    return f" ({names} on {found[0]['device']})" if found else ""


def as_markdown(rows: Sequence[Row], document: dict[str, Any], benchmark: Row | None = None) -> str:
    """The page: verdicts, then a table of each task."""
    settings, versions = document["configuration"], document["versions"]
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    parts = [
        f"On {versions['device']}, torch {versions['torch']}{_elsewhere(rows, versions)}; "
        f"width {settings['width']}, "
        f"{settings['heads']} heads of attention; seeds {seeds}. Seconds are of networks that "
        "train several at a time.\n\n",
        markdown_table(
            ("goal", "found", "reached"),
            [(goal, found, _ANSWERS[holds]) for goal, found, holds in verdicts(rows, benchmark)],
        ),
    ]
    each = [judged(rows, name) for name in problems(rows)]
    made = [one for one in each if one.rows[0]["task"] != "text"]
    text = [one for one in each if one.rows[0]["task"] == "text"]
    if made:
        parts += [f"\n{_about_made(settings)}\n\n", _made(made)]
    if text:
        parts += [f"\n{_about_text(settings)}\n\n", _text(text), _equal(text[-1]), _shares(text)]
    return "".join(parts)


def _about_made(settings: Row) -> str:
    mixed = " Induction is learnt from sequences that ask for 1, 2, 4, … or k hops, and"
    mixed = mixed if settings.get("mixed") else " Induction is"
    return (
        f"Errors a token on {settings['test_rows']} fresh sequences.{mixed} judged by k alone: "
        f"{settings['steps']} batches of {settings['rows']} sequences of {settings['hop_length']} "
        f"letters (words: {settings['word_steps']} of {settings['word_rows']})."
    )


def _about_text(settings: Row) -> str:
    return (
        "Bits a character on held-out pieces from all over the text; "
        f"{settings['text_steps']} batches of {settings['text_rows']} windows of "
        f"{settings['text_length']} characters."
    )


def _made(each: Sequence[Judged]) -> str:
    """A line for each task that is made: errors by depth, then the UDN."""
    depths = sorted({depth for one in each for depth in one.fixed})
    head = ["task", "published", *(f"Ω{_low(depth)}" for depth in depths)]
    lines = []
    for one in each:
        first = one.rows[0]
        known = first.get("published")
        cells = [first["about"], "–" if known is None else str(known)]
        cells += [f"{one.fixed[d]:.4f}" if d in one.fixed else "–" for d in depths]
        lines.append([*cells, *_udn(one)])
    return markdown_table([*head, *_HEAD], lines)


_HEAD = ("UDN", "E[ℓ]", "mode", "its seconds ÷ those of a search")


def _udn(one: Judged) -> list[str]:
    if not one.udn:
        return ["–"] * len(_HEAD)
    means = [row["depth_mean"] for row in one.udn]
    return [
        _mean(map(score, one.udn), 4),
        _mean(means, 2),
        ", ".join(map(str, sorted(set(one.modes)))),
        f"{one.cost:.2f}" if one.seconds and not math.isnan(one.cost) else "–",
    ]


def _text(each: Sequence[Judged]) -> str:
    """The text by share, at the usual width."""
    depths = sorted({depth for one in each for depth in one.fixed})
    head = ["characters", *(f"Ω{_low(depth)}" for depth in depths), *_HEAD]
    lines = []
    for one in each:
        cells = [f"{one.rows[0]['num_data']:,}"]
        cells += [f"{one.fixed[d]:.4f}" if d in one.fixed else "–" for d in depths]
        lines.append([*cells, *_udn(one)])
    return markdown_table(head, lines)


def _equal(one: Judged) -> str:
    """Networks of several depths with as many parameters."""
    equal = by_depth(one.rows, "equal")
    if not equal:
        return ""
    lines = [
        [
            f"{depth} blocks of width {of[0]['width']}",
            f"{of[0]['parameters']:,}",
            _mean(map(score, of), 4),
        ]
        for depth, of in equal.items()
    ]
    for row in one.udn[:1]:
        usual = f"UDN of width {row['width']}, E[ℓ] {row['depth_mean']:.2f}"
        lines.append([usual, f"{row['parameters']:,}", _mean(map(score, one.udn), 4)])
    heading = "Networks of other shapes, all with about as many parameters; those of the UDN are of"
    return f"\n{heading} all depths that it has:\n\n" + markdown_table(
        ("network", "parameters", "bits"), lines
    )


def _shares(each: Sequence[Judged]) -> str:
    """E[ℓ] against the size of the data, in words."""
    found = [
        f"{statistics.fmean(row['depth_mean'] for row in one.udn):.2f} of "
        f"{one.rows[0]['num_data']:,}"
        for one in each
        if one.udn
    ]
    return f"\nE[ℓ] by characters of training text: {', '.join(found)}.\n" if found else ""


def _mean(values: Iterable[float], digits: int) -> str:
    found = list(values)
    error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else None
    return plus_minus(statistics.fmean(found), error, digits)


def _low(depth: int) -> str:
    return str(depth).translate(SUBSCRIPTS)


main = partial(rewrite, write, __doc__, "folder with NAME.json of each network")

if __name__ == "__main__":
    sys.exit(main())
