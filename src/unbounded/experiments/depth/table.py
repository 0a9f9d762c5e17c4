"""Page and figures of a suite that was run: `python -m unbounded.experiments.depth.table FOLDER`.

Reads the file NAME.json of each problem in FOLDER, and writes `table.md`, `page.html`,
`overview.svg` and NAME.svg of each problem beside them.
"""

import base64
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unbounded.experiments import records
from unbounded.experiments.depth import figures
from unbounded.experiments.depth.problems import PROBLEMS
from unbounded.experiments.depth.verdicts import (
    COST,
    CRITERIA,
    Criterion,
    Pace,
    Row,
    Verdict,
    costs,
    reached,
    share,
    verdict,
)
from unbounded.experiments.pages import markdown_table, publish, rewrite
from unbounded.report import page

PACES = "seconds.json"
"""What `python -m benchmarks.search` writes into the folder of a suite."""
ROLES = {"all": None, "development": "development", "test": "test"}


def read(folder: Path) -> list[Row]:
    """The files of the problems, in the order of the suite; those it does not know come last."""
    found = records.read_study(folder, "depth", "depth suite")
    order = list(PROBLEMS)

    def place(document: Row) -> tuple[int, str]:
        name = document["problem"]["name"]
        return (order.index(name) if name in order else len(order)), name

    return sorted(found, key=place)


def write(folder: Path) -> str:
    """Write the pages and the figures of the results in a folder; returns `table.md`."""
    documents, paces = read(folder), read_paces(folder)
    judged = [
        (verdict_of(document, paces.get(document["problem"]["name"])), document["runs"])
        for document in documents
    ]
    found = [(one, rows) for one, rows in judged if one is not None]
    drawings: dict[str, Any] = {
        "overview.svg": (
            partial(figures.overview, found=found),
            figures.overview_size(len(found)),
        )
    }
    for one, rows in found:
        paint = partial(figures.problem, rows=rows, verdict=one)
        drawings[f"{one.problem['name']}.svg"] = (paint, figures.SIZE)
    verdicts = [one for one, _ in found]
    text = publish(folder, as_markdown(documents, verdicts), drawings, _differing(documents))
    page.write(folder / "page.html", as_html(documents, verdicts, folder))
    return text


def read_paces(folder: Path) -> dict[str, Pace]:
    """How fast networks of each problem train alone, where that was measured."""
    path = folder / PACES
    found = records.read_json(path)["problems"] if path.exists() else {}
    return {name: pace(one) for name, one in found.items()}


def pace(lines: Row) -> Pace:
    """From an entry of that file."""
    return Pace(tuple(lines["fixed"]), tuple(lines["udn"]), tuple(lines["resting"]))


def verdict_of(document: Row, pace: Pace | None = None) -> Verdict | None:
    """Of one file."""
    return verdict(document["problem"], document["runs"], document["start"], pace)


main = partial(rewrite, write, __doc__, "folder with NAME.json of each problem")


# Words and cells ---------------------------------------------------------------------------------

VERDICT_HEAD = ("to reach", "goal", "all", "development", "test", "reached")
PROBLEM_HEAD = (
    *("problem", "role", "best fixed depth", "its score", "smallest in 1 s.e."),
    *("chosen by validation", "DUN", "UDN", "mode", "E[ℓ] from each start", "E[ℓ], longest"),
    *("seconds", "arithmetic", "regret", "search", "parsimony", "start", "length"),
)


def verdict_table(verdicts: Sequence[Verdict]) -> tuple[tuple[str, ...], list[list[str]]]:
    """A head, and a row for each thing to reach: by the UDN, then by one that trains longer."""
    longer = [one.longer for one in verdicts if one.longer is not None]
    rows = []
    for criterion in CRITERIA:
        cells = [_share(_of_role(verdicts, role), criterion) for role in ROLES.values()]
        goal = f"≥ {criterion.goal:.0%}" if criterion.goal else f"≤ {COST:g} on average"
        row = [criterion.about, goal, *cells, _mark(reached(verdicts, criterion))]
        if longer:
            row += [_share(longer, criterion), _mark(reached(longer, criterion))]
        rows.append(row)
    more = (f"trained {_times(longer)} as long, all", "reached") if longer else ()
    return (*VERDICT_HEAD, *more), rows


def problem_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A row for each problem."""
    return [_problem_row(one) for one in verdicts]


def _problem_row(one: Verdict) -> list[str]:
    task = one.problem["task"]
    shown = partial(_score, task=task)
    error = "" if one.error is None else f" ± {_error(one.error, task)}"
    dun = "–" if one.dun_score is None else f"{shown(one.dun_score)} (E[ℓ] {one.dun_mean:.1f})"
    return [
        one.problem["name"],
        one.problem["role"],
        str(one.best_depth),
        shown(one.best_score) + error,
        "–" if one.smallest is None else str(one.smallest),
        f"{shown(one.chosen_score)} (depth {one.chosen_depth:.1f})",
        dun,
        shown(one.udn.score),
        f"{one.udn.depth_mode:.1f}",
        " / ".join(f"{start.depth_mean:.1f}" for start in one.starts),
        "–" if one.long_mean is None else f"{one.long_mean:.1f}",
        "–" if one.seconds is None else f"{one.seconds:.2f}",
        f"{one.arithmetic:.2f}",
        *map(_mark, (one.regret, one.as_chosen, one.parsimony, one.start, one.length)),
    ]


LOG_HEAD = ("problem", "best fixed depth", "chosen by validation", "DUN", "UDN")


def log_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Log scores: a row for each problem."""
    return [
        [one.problem["name"], *(_log(value) for value in one.log_scores.values())]
        for one in verdicts
    ]


def as_markdown(documents: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """The page: verdicts first, then a row for each problem, then the figures."""
    lines = [
        "# Depth inference, measured",
        "",
        *_paragraphs(documents),
        "## Verdicts",
        "",
        markdown_table(*verdict_table(verdicts)),
        _means(documents, verdicts),
        "",
        "## Problems",
        "",
        _READING,
        "",
        markdown_table(PROBLEM_HEAD, problem_rows(verdicts)),
        f"{_LOGS}:",
        "",
        markdown_table(LOG_HEAD, log_rows(verdicts)),
        "![All problems](overview.svg)",
        "",
    ]
    for one in verdicts:
        name = one.problem["name"]
        lines += [f"### {name}", "", _sentence(one), "", f"![{name}]({name}.svg)", ""]
    return "\n".join(lines)


def as_html(documents: Sequence[Row], verdicts: Sequence[Verdict], folder: Path) -> str:
    """The same as one page that needs no other file."""
    facts = [(c.name, _share(verdicts, c)) for c in CRITERIA if share(verdicts, c.field)[1]]
    intro, *rest = [text for text in _paragraphs(documents) if text]
    sections = [
        page.Section(
            "Verdicts",
            "\n\n".join([*rest, _means(documents, verdicts)]),
            [page.table(*verdict_table(verdicts))],
            full=True,
        ),
        page.Section("All problems", _LEGEND, [_image(folder, "overview")], full=True),
        page.Section(
            "Problems",
            _READING,
            [
                page.table(PROBLEM_HEAD, problem_rows(verdicts)),
                page.table(LOG_HEAD, log_rows(verdicts), title=_LOGS),
            ],
            full=True,
        ),
    ]
    for one in verdicts:
        name = one.problem["name"]
        sections.append(page.Section(name, _sentence(one), [_image(folder, name)], wide=True))
    return page.render("Depth inference, measured", intro, facts, sections)


_LEGEND = (
    "Each panel is a problem: the test score of every fixed depth, with q(ℓ) of the UDN behind it."
)
_READING = (
    "Scores are accuracies in percent and RMSEs in the target's units, means over seeds; ± is one "
    "standard error, always that of the best fixed depth. “Smallest” is the smallest fixed depth "
    "within it. Seconds and arithmetic (layers × rows) are the UDN's, over those of the search "
    "through all fixed depths. Seconds are those of networks that train one after the other, by "
    "their pace on one core (`python -m benchmarks.search`). Where that was not measured, they are "
    "those of populations, of which each network is given a share by its arithmetic, and seconds "
    "of two machines are not compared."
)


_LOGS = "Mean test log scores, in nats a row (higher is better)"


def _paragraphs(documents: Sequence[Row]) -> list[str]:
    settings = documents[0]["configuration"]
    machines = {f"{v['device']} with torch {v['torch']}" for d in documents for v in d["versions"]}
    depths = settings["depths"]
    starts = ", ".join(f"{start:g}" for start in settings["starts"])
    seconds = sum(document["seconds"] for document in documents)
    longer = f"; the longest training is {settings['long']} times as long"
    longer = longer if settings["long"] > 1 else ""
    rows = "UCI sets of more than 10,000 rows are cut to 8,000 rows to train and 2,000 to validate."
    return [
        f"{len(documents)} problems, {len(settings['seeds'])} seeds. Networks of the fixed depths "
        f"{_ranges(depths)}, the UDN from μ = {starts}, and DUN with up to {max(depths)} layers, "
        "all by one recipe. Each keeps its best epoch by validation.",
        "",
        f"{settings['made_epochs']} epochs on spirals and tents, about {settings['table_steps']} "
        f"steps on tables{longer}. {rows}",
        "",
        f"Trained on {' and '.join(sorted(machines))} in {seconds:.0f} s.",
        "",
    ]


def _means(documents: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """What the table of verdicts does not say."""
    names = [document["problem"]["name"] for document in documents]
    if not verdicts:
        return "No problem has both fixed depths and a UDN."
    rests = sum(one.settled for one in verdicts) / len(verdicts)
    words = f"The depth has come to rest in {rests:.0%} of the UDN's runs."
    missing = [name for name in names if name not in {one.problem["name"] for one in verdicts}]
    if missing:
        words = f"Without fixed depths or a UDN, and not counted: {', '.join(missing)}. {words}"
    searched, borrowed = (share(verdicts, field) for field in ("chosen", "borrowed"))
    if borrowed[1]:
        words += (
            " The best of many depths in hindsight is a lucky one, too: within one standard error "
            f"of it is the depth that validation chooses on {searched[0]} of {searched[1]} "
            "problems, and the depth that is best on the test rows of the other seeds on "
            f"{borrowed[0]} of {borrowed[1]}."
        )
    starts, lengths = (share(verdicts, field) for field in ("last_start", "last_length"))
    if starts[1]:
        words += (
            " By E[ℓ] of the last epoch, instead of the best one that is kept, all starts lead to "
            f"one depth on {starts[0]} of {starts[1]} problems"
        )
        words += f", and both lengths on {lengths[0]} of {lengths[1]}." if lengths[1] else "."
    longer = [one.longer for one in verdicts if one.longer is not None]
    return words + (_judged(longer) if longer else "")


def _judged(verdicts: Sequence[Verdict]) -> str:
    """What comes of UDNs that take more, beside single fixed depths of the usual length."""
    held, chosen, sparing = (
        share(verdicts, field)[0] for field in ("regret", "as_chosen", "parsimony")
    )
    seconds, arithmetic = costs(verdicts)
    time = "" if math.isnan(seconds) else f" and {seconds:.2f} of its seconds"
    return (
        " More of the search's cost can be spent, judged by the same lines. A UDN that trains "
        f"{_times(verdicts)} as long takes {arithmetic:.2f} of the search's arithmetic{time}; "
        "beside single fixed depths of the usual length it is within one standard error of the "
        f"best on {held} of {len(verdicts)} problems, at least as good as the depth that "
        f"validation chooses on {chosen}, and parsimonious on {sparing}."
    )


def _times(verdicts: Sequence[Verdict]) -> str:
    """How many times the usual epochs these UDNs have trained."""
    return " or ".join(str(times) for times in sorted({one.times for one in verdicts})) + " times"


def _sentence(one: Verdict) -> str:
    task = one.problem["task"]
    words = f"{one.problem['about']} ({one.problem['role']}). "
    words = words[0].upper() + words[1:]
    if one.problem.get("needed"):
        words += f"{one.problem['needed']} layers are enough. "
    words += f"Best fixed depth {one.best_depth}: {_score(one.best_score, task)}"
    if one.smallest is not None:
        words += f"; {one.smallest} is within one standard error of it"
    return (
        f"{words}. UDN: {_score(one.udn.score, task)} at E[ℓ] = {one.udn.depth_mean:.1f}, "
        f"mode {one.udn.depth_mode:.1f}."
    )


def _differing(documents: Sequence[Row]) -> str:
    """What must be said where the files were not made alike."""
    first = documents[0]["configuration"]
    others = [d["problem"]["name"] for d in documents if d["configuration"] != first]
    if not others:
        return ""
    return f"Not all problems were run with the same settings: {', '.join(others)} differ."


def _of_role(verdicts: Sequence[Verdict], role: str | None) -> list[Verdict]:
    return [one for one in verdicts if role is None or one.problem["role"] == role]


def _share(verdicts: Sequence[Verdict], criterion: Criterion) -> str:
    held, judged = share(verdicts, criterion.field)
    if not judged:
        return "–"
    if criterion.field == "cheap":
        seconds, arithmetic = costs(verdicts)
        return f"{seconds:.2f} and {arithmetic:.2f} ({held} of {judged})"
    return f"{held} of {judged} ({held / judged:.0%})"


def _mark(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def _score(value: float, task: str) -> str:
    if not math.isfinite(value):  # a run broke off
        return "–"
    return f"{100 * value:.2f}" if task == "classes" else f"{value:.4g}"


def _error(value: float, task: str) -> str:
    return f"{100 * value:.2f}" if task == "classes" else f"{value:.2g}"


def _log(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _ranges(numbers: Sequence[int]) -> str:
    is_run = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} … {numbers[-1]}" if is_run else ", ".join(map(str, numbers))


def _image(folder: Path, name: str) -> str:
    """A figure within the page; as an image, since names within two SVGs may be the same."""
    path = folder / f"{name}.svg"
    if not path.exists():
        return ""
    code = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:image/svg+xml;base64,{code}"
    return f'<figure class="chart"><img alt="{name}" style="width:100%" src="{source}"/></figure>'


if __name__ == "__main__":
    sys.exit(main())
