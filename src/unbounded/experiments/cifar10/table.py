"""Tables of a study that was run: `python -m unbounded.experiments.cifar10.table RESULTS`.

Reads the runs in the folder RESULTS, and writes `table.md` and the figures beside them. Of a folder
of such folders, one for each recipe, it does so in each of them, then for all (see `overview`).
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from unbounded.experiments import StudyError, records
from unbounded.experiments.cifar10 import figures, published
from unbounded.experiments.cifar10.models import OTHERS, fixed_depth, infers_depth, label, order
from unbounded.experiments.cifar10.plan import RULES, STUDY, classes_label
from unbounded.experiments.cifar10.results import (
    Result,
    headline,
    read,
    relative_range,
    select,
    settings,
    spread_of,
)
from unbounded.experiments.cifar10.study import MARK
from unbounded.experiments.pages import markdown_table, plus_minus, publish, rewrite

RULE_LABELS = {"settled": "settled", "ascent": "ours", "gradient": "the paper's"}
ALIKE = 0.25
"""How far apart, as a share of their mean, E[ℓ] may end from different λ₀."""


# The page


def markdown(results: Sequence[Result]) -> str:
    """Everything as one page of tables."""
    parts = ["### Test accuracy in percent, all ten classes\n", accuracy_table(results)]
    if select(results, "udn"):
        parts += ["### Easy, hard and all classes: accuracy and depth\n", classes_table(results)]
    fixed = fixed_table(results)
    parts += ["### Some of the classes: accuracy of every model\n", fixed] if fixed else []
    if select(results, "udn", ()):
        parts += ["### E[ℓ] at the end, from each λ₀ (all ten classes)\n", starts_table(results)]
        parts += ["### Claims\n", _verdicts(results)]
    parts += ["### How it was run\n", _conditions(results)]
    return "\n".join(parts)


class Line(NamedTuple):
    """A row of Table 2: what was published, and our runs of it, of which there may be none."""

    model: str
    label: str
    known: published.Published | None
    runs: list[Result]


def lines(results: Sequence[Result]) -> list[Line]:
    """The rows of Table 2 and whatever else was run on all ten classes, in order.

    The published UDN is beside the main one of ours; other rules from the same λ₀ come after it.
    """
    full = select(results, classes=())
    printed = {row.model: row for row in published.TABLE}
    names = {*printed, *(r["run"]["model"] for r in full)} - {"udn"}
    found = []
    for name in sorted(names, key=order):
        known = printed.get(name)
        called = known.label if known else label(name)
        found.append(Line(name, called, known, select(full, name)))
    main = headline(results)
    found.append(Line("udn", _udn_label(main), printed["udn"], main))
    for rule in RULES if main else ():
        other = select(full, "udn", (), main[0]["run"]["lambda0"], rule)
        if other and rule != main[0]["run"]["rule"]:
            found.append(Line("udn", _udn_label(other), None, other))
    return found


def accuracy_table(results: Sequence[Result]) -> str:
    """Table 2: published figures beside ours."""
    rows, models = [], lines(results)
    best = best_of(models)
    for name, called, known, runs in models:
        cells = [called, "–", "–"]
        if known is not None:
            cells[1:] = [plus_minus(known.mean, known.deviation, 1), known.source]
        if not runs:
            rows.append(cells + ["–"] * 10)
            continue
        cells += [accuracy_cell(runs, best), str(len(runs)), *score_cells(runs)]
        cells.append(_integers(runs, "max_depth") if name not in OTHERS else "–")
        rows.append(cells + cost_cells(runs))
    head = ["model", "published", "source", "ours", "seeds", *SCORES, "m", *COSTS]
    return markdown_table(head, rows) + f"\n{EXPLAINED}\n" + reasons(models)


SCORES = ("log score", "ECE", "E[ℓ]")
COSTS = ("million weights", "GFLOP", "training s", "images/s")
EXPLAINED = (
    f"± is a standard deviation over runs. {published.SOURCE}. GFLOP: of a forward pass of an "
    "image, products and sums; of solvers with as many steps as they took. images/s: when "
    "predicting."
)


def reasons(models: Sequence[Line]) -> str:
    """Why our numbers may differ from the published, of the rows that have both."""
    found: dict[str, list[str]] = {}
    for line in models:
        if line.known is not None and line.runs:
            found.setdefault(line.known.differs, []).append(line.known.label)
    if not found:
        return ""
    each = (f"- {', '.join(dict.fromkeys(names))}: {why}.\n" for why, names in found.items())
    return "\nWhy ours may differ from the published:\n\n" + "".join(each)


def best_of(models: Sequence[Line]) -> float | None:
    """The highest mean accuracy, if anything was run."""
    return max((spread_of(m.runs, "test_accuracy").mean for m in models if m.runs), default=None)


def accuracy_cell(runs: Sequence[Result], best: float | None) -> str:
    """Accuracy in percent, the best one bold."""
    shown = _percent(runs)
    return f"**{shown}**" if spread_of(runs, "test_accuracy").mean == best else shown


def score_cells(runs: Sequence[Result]) -> list[str]:
    """What `SCORES` names."""
    infers = infers_depth(runs[0]["run"]["model"])
    shown = [_show(runs, "test_log_score", 3), _show(runs, "test_ece", 3)]
    return [*shown, _show(runs, "depth_mean") if infers else "–"]


def cost_cells(runs: Sequence[Result]) -> list[str]:
    """What `COSTS` names."""
    return [
        _mean(runs, "parameters", 1e6, 2),
        _mean(runs, "flops", 1e9, 2),
        _mean(runs, "seconds", 1.0, 0),
        _mean(runs, "images_per_second", 1.0, 0),
    ]


def _mean(runs: Sequence[Result], key: str, unit: float, digits: int) -> str:
    """A mean over those runs that have it: earlier ones do not have all."""
    known = [run for run in runs if key in run]
    return f"{spread_of(known, key, unit).mean:,.{digits}f}" if known else "–"


def classes_table(results: Sequence[Result]) -> str:
    """The UDN on an easy pair, a hard pair and all ten classes."""
    own = [tuple(r["run"]["classes"]) for r in select(results, "udn")]
    head = ["classes", "accuracy, paper", "accuracy, ours", "seed by seed"]
    head += ["E[ℓ]", "seed by seed", "m"]
    rows = []
    for group in dict.fromkeys([published.EASY, published.HARD, (), *own]):
        runs = headline(results, group)
        known = published.ACCURACY.get(group)
        cells = ["not run", "–", "–", "–", "–"]
        if runs:
            accuracies = ", ".join(f"{100 * r['test_accuracy']:.2f}" for r in runs)
            depths = ", ".join(f"{r['depth_mean']:.2f}" for r in runs)
            cells = [_percent(runs), accuracies, _show(runs, "depth_mean"), depths]
            cells.append(_integers(runs, "max_depth"))
        rows.append([classes_label(group), "–" if known is None else f"{known:.0f}", *cells])
    return markdown_table(head, rows) + f"\nAll with {_described(results)}.\n"


def fixed_table(results: Sequence[Result]) -> str:
    """Fixed depths beside the UDN on some of the classes; nothing where there are none."""
    fixed = [r for r in results if r["run"]["model"] != "udn" and r["run"]["classes"]]
    depths = sorted({r["run"]["model"] for r in fixed}, key=order)
    rows = []
    for group in dict.fromkeys(tuple(r["run"]["classes"]) for r in fixed):
        cells = [select(fixed, depth, group) for depth in depths] + [headline(results, group)]
        shown = [_percent(runs) if runs else "–" for runs in cells]
        depth = _show(cells[-1], "depth_mean") if cells[-1] else "–"
        rows.append([classes_label(group), *shown, depth])
    head = ["classes", *map(label, depths), label("udn"), "E[ℓ]"]
    return markdown_table(head, rows) if rows else ""


def starts_table(results: Sequence[Result]) -> str:
    """E[ℓ] at the end from each λ₀, for every rule."""
    full = select(results, "udn", ())
    rules = [rule for rule in RULES if select(full, rule=rule)]
    if not rules:
        return "The UDN was not run on all ten classes.\n"
    head, last = ["λ₀"], ["(max − min) / mean"]
    for rule in rules:
        head += [f"E[ℓ], {RULE_LABELS[rule]}", "accuracy, %", "seeds"]
        ends = list(_ends(full, rule).values())
        last += [f"{relative_range(ends):.1%}" if len(ends) > 1 else "one λ₀ alone", "", ""]
    rows = []
    for start in sorted({r["run"]["lambda0"] for r in full}):
        cells = [f"{start:g}"]
        for rule in rules:
            runs = select(full, lambda0=start, rule=rule)
            shown = [_show(runs, "depth_mean"), _percent(runs), str(len(runs))] if runs else None
            cells += shown or ["–", "–", "–"]
        rows.append(cells)
    return markdown_table(head, [*rows, last])


def verdicts(results: Sequence[Result]) -> dict[str, bool]:
    """What the paper claims, and whether it is so here; what was not run is left out.

    "As good as": the mean is not lower than the other by more than its own standard deviation.
    """
    found: dict[str, bool] = {}
    main = headline(results)
    if main:
        ours = spread_of(main, "test_accuracy", 0.01)
        reach = round(ours.mean + (ours.deviation or 0.0), 6)  # 94.39999… is 94.4
        paper = next(row for row in published.TABLE if row.model == "udn")
        found[f"UDN as good as the paper's {paper.mean}"] = reach >= paper.mean
        full = select(results, classes=())
        depths = {m for m in (r["run"]["model"] for r in full) if fixed_depth(m) is not None}
        if len(depths) > 1:
            means = [spread_of(select(full, depth), "test_accuracy", 0.01).mean for depth in depths]
            best = round(max(means), 6)
            count = len(depths)
            found[f"UDN as good as the best of {count} fixed depths"] = reach >= best
            found[f"the best of {count} fixed depths not above the UDN"] = (
                round(ours.mean, 6) >= best
            )
    ends = _ends(results, main[0]["run"]["rule"]) if main else {}
    if len(ends) > 1:
        starts = ", ".join(f"{start:g}" for start in ends)
        claim = f"E[ℓ] from λ₀ = {starts} within {ALIKE:.0%} of each other"
        found[claim] = relative_range(list(ends.values())) <= ALIKE
    pairs = {group: [r["depth_mean"] for r in headline(results, group)] for group in STUDY}
    if all(pairs.values()):
        everything, easy, hard = (pairs[group] for group in STUDY)
        claim = "E[ℓ] grows from deer + automobile to cat + dog to all ten, whatever the seeds"
        found[claim] = max(easy) < min(hard) and max(hard) < min(everything)
        for group in (published.EASY, published.HARD):
            accuracy = spread_of(headline(results, group), "test_accuracy", 0.01)
            known = published.ACCURACY[group]
            good = round(accuracy.mean + (accuracy.deviation or 0.0)) >= known
            found[f"UDN as good as the paper's {known:.0f} on {classes_label(group)}"] = good
    return found


def _ends(results: Sequence[Result], rule: str) -> dict[float, float]:
    """λ₀ ↦ E[ℓ] at the end on all ten classes, averaged over seeds."""
    full = select(results, "udn", (), rule=rule)
    starts = sorted({r["run"]["lambda0"] for r in full})
    return {start: spread_of(select(full, lambda0=start), "depth_mean").mean for start in starts}


def _verdicts(results: Sequence[Result]) -> str:
    found = verdicts(results)
    if not found:
        return "Too little was run to tell.\n"
    rows = [[claim, "yes" if good else "no"] for claim, good in found.items()]
    return markdown_table(["claim", "holds"], rows)


def _conditions(results: Sequence[Result]) -> str:
    """Device, recipe, and the time of each kind of run."""
    devices = dict.fromkeys(
        f"{r['versions'].get('device', '?')}, torch {r['versions'].get('torch', '?')}"
        for r in results
    )
    groups: dict[str, list[Result]] = {}
    for result in results:
        run = result["run"]
        key = f"{label(run['model'])}, {classes_label(run['classes'])}"
        groups.setdefault(key, []).append(result)
    head = ["run", "runs", "minutes", "of that capturing and compiling", "seconds an epoch"]
    rows = []
    for name, runs in groups.items():
        minutes = (f"{spread_of(runs, k, 60).mean:.1f}" for k in ("seconds", "capture_seconds"))
        epoch = f"{spread_of(runs, 'epoch_seconds').mean:.2f}"
        rows.append([name, str(len(runs)), *minutes, epoch, _integers(runs, "num_layers")])
    total = sum(r["seconds"] for r in results) / 60
    each = ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in settings(results).items()
    )
    note = f"{total:.1f} minutes of runs on {'; '.join(devices)}. Recipe: {each}.\n"
    return markdown_table([*head, "layers"], rows) + "\n" + note


def _udn_label(runs: Sequence[Result]) -> str:
    if not runs:
        return "UDN"
    run = runs[0]["run"]
    return f"UDN, {_rule(run['rule'])}, λ₀ = {run['lambda0']:g}"


def _described(results: Sequence[Result]) -> str:
    kinds = {
        f"{_rule(r['run']['rule'])} and λ₀ = {r['run']['lambda0']:g}": None
        for group in {tuple(r["run"]["classes"]): None for r in select(results, "udn")}
        for r in headline(results, group)
    }
    return " or ".join(kinds) or "no UDN"


def _rule(rule: str) -> str:
    return {
        "settled": "settled",
        "ascent": "λ by our rule (ascent)",
        "gradient": "λ by the paper's rule (gradient)",
    }[rule]


def _integers(runs: Sequence[Result], key: str) -> str:
    values = sorted({run[key] for run in runs})
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"


def _show(runs: Sequence[Result], key: str, digits: int = 2, unit: float = 1.0) -> str:
    """Mean and standard deviation of a number of the runs, in multiples of `unit`."""
    found = spread_of(runs, key, unit)
    return plus_minus(found.mean, found.deviation, digits)


def _percent(runs: Sequence[Result]) -> str:
    return _show(runs, "test_accuracy", unit=0.01)


# Files


def warning(folder: Path) -> str:
    """What has to be said of a quick look, or nothing."""
    if not (folder / MARK).is_file():
        return ""
    look = records.read_json(folder / MARK)
    return (
        f"QUICK LOOK: {look['train']} training images, {look['test']} test images, "
        f"{look['epochs']} epochs. THESE NUMBERS MEAN NOTHING; they show that everything runs."
    )


def write(folder: Path) -> str:
    """Write `table.md` and the figures into a folder of results; returns the tables.

    If models of it were evaluated, their tables and figures are written again, too.
    """
    from unbounded.experiments.cifar10 import evaluated, overview

    results = read(folder)
    if not results:
        if overview.folders(folder):
            return overview.write(folder)
        raise StudyError(f"{folder} has no results of a run, such as runs/5-all-seed0.json")
    found = evaluated.read_found(folder)
    if found:
        evaluated.write(folder, found)
    loud = warning(folder)
    drawings = {
        name: (partial(paint, results=results, note=loud), size)
        for name, (paint, size) in figures.NAMES.items()
    }
    return publish(folder, markdown(results), drawings, loud)


def brief(folder: Path) -> str:
    """Write everything; returns what a page of the documentation has room for."""
    from unbounded.experiments.cifar10 import overview

    text = write(folder)
    return text if read(folder) else overview.brief(overview.parts(folder))


main = partial(rewrite, brief, __doc__, "folder of a study, or of studies")

if __name__ == "__main__":
    sys.exit(main())
