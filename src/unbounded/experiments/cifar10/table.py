"""Tables of a study that was run: `python -m unbounded.experiments.cifar10.table RESULTS`.

Reads the runs in the folder RESULTS, and writes `table.md` and the figures beside them.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from unbounded.experiments import records
from unbounded.experiments.cifar10 import figures, published
from unbounded.experiments.cifar10.models import OTHERS, fixed_depth, infers_depth, label, order
from unbounded.experiments.cifar10.plan import RULES, STUDY, classes_label
from unbounded.experiments.cifar10.results import (
    Result,
    headline,
    read,
    relative_range,
    select,
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
    parts += ["### Easy, hard and all classes: accuracy and depth\n", classes_table(results)]
    fixed = fixed_table(results)
    parts += ["### Some of the classes: accuracy of every model\n", fixed] if fixed else []
    parts += ["### E[ℓ] at the end, from each λ₀ (all ten classes)\n", starts_table(results)]
    parts += ["### What was to be reached\n", _verdicts(results)]
    parts += ["### How it was run\n", _conditions(results)]
    return "\n".join(parts)


def accuracy_table(results: Sequence[Result]) -> str:
    """Table 2: published figures beside ours."""
    full = select(results, classes=())
    printed = {row.model: row for row in published.TABLE}
    names = {*printed, *(r["run"]["model"] for r in full)} - {"udn"}
    models: list[tuple[str, published.Published | None, list[Result]]] = []
    for name in sorted(names, key=order):
        known = printed.get(name)
        models.append((known.label if known else label(name), known, select(full, name)))
    main = headline(results)
    models.append((_udn_label(main), printed["udn"], main))
    for rule in RULES:  # the other rules, from the same λ₀
        other = select(full, "udn", (), main[0]["run"]["lambda0"], rule) if main else []
        if other and other[0]["run"]["rule"] != main[0]["run"]["rule"]:
            models.append((_udn_label(other), None, other))
    best = max((spread_of(r, "test_accuracy").mean for _, _, r in models if r), default=None)
    head = ["model", "published", "source", "ours", "seeds", "log score", "ECE"]
    head += ["E[ℓ]", "m", "million weights", "GFLOP", "training s", "images/s"]
    rows, reasons = [], list[str]()
    for name, known, runs in models:
        cells = [name, "–", "–"]
        if known is not None:
            cells[1:] = [plus_minus(known.mean, known.deviation, 1), known.source]
            reasons += [f"- {name}: {known.differs}."] if runs else []
        rows.append(cells + (_cells(runs, best) if runs else ["–"] * 10))
    note = (
        f"\n± is a standard deviation over runs. {published.SOURCE}. GFLOP: of a forward pass of "
        "an image, products and sums; of solvers with as many steps as they took. images/s: when "
        "predicting.\n"
    )
    if reasons:
        note += "\nWhy ours may differ from the published:\n\n" + "\n".join(reasons) + "\n"
    return markdown_table(head, rows) + note


def _cells(runs: Sequence[Result], best: float | None) -> list[str]:
    shown = _percent(runs)
    return [
        f"**{shown}**" if spread_of(runs, "test_accuracy").mean == best else shown,
        str(len(runs)),
        _show(runs, "test_log_score", 3),
        _show(runs, "test_ece", 3),
        _show(runs, "depth_mean") if infers_depth(runs[0]["run"]["model"]) else "–",
        _integers(runs, "max_depth") if runs[0]["run"]["model"] not in OTHERS else "–",
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
    return markdown_table(["claim", "reached"], rows)


def _conditions(results: Sequence[Result]) -> str:
    """Device, recipe, and the time of each kind of run."""
    recipe = results[-1]["recipe"]  # a UDN's, if there is one: it uses all of it
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
    settings = ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in recipe.items()
    )
    note = f"{total:.1f} minutes of runs on {'; '.join(devices)}. Recipe: {settings}.\n"
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
    """Write `table.md` and the figures into a folder of results; returns the tables."""
    results = read(folder)
    if not results:
        raise FileNotFoundError(f"{folder} has no results of a run, such as runs/5-all-seed0.json")
    loud = warning(folder)
    drawings = {
        name: (partial(paint, results=results, note=loud), size)
        for name, (paint, size) in figures.NAMES.items()
    }
    return publish(folder, markdown(results), drawings, loud)


main = partial(rewrite, write, __doc__, "folder of a study")

if __name__ == "__main__":
    sys.exit(main())
