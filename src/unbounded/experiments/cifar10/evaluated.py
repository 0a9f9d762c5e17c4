"""Table and figures of an evaluation."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.data.corruptions import SEVERITIES, STRENGTHS
from unbounded.experiments import figures, records
from unbounded.experiments.cifar10.models import fixed_depth, label, order
from unbounded.experiments.cifar10.plan import classes_label
from unbounded.experiments.cifar10.results import Result, read, select, spread_of
from unbounded.experiments.figures import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, NothingToDraw
from unbounded.experiments.pages import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
_COLOURS = (BLUE, GREEN, PINK, RED, SKY)
_MARKS = ("x", "+", "s", "^", "D")
_SHOWN = 12.0  # points of accuracy, of early exits
_ENOUGH = 20  # images in a bin of the reliability diagram


def markdown(found: Sequence[Found], results: Sequence[Result]) -> str:
    """Scores, robustness and exits as one page."""
    parts = ["### Scores of kept models, and of ensembles of them\n", scores_table(found)]
    parts += ["### Corrupted images: accuracy in percent, mean of each kind\n", worse_table(found)]
    exits = exits_table(found, results)
    parts += ["### Early exits\n", exits] if exits else []
    return "\n".join(parts)


def scores_table(found: Sequence[Found]) -> str:
    """A row for each model and ensemble."""
    sets = list(dict.fromkeys(name for one in found for name in one["ood"]))
    head = ["model", "classes", "seeds", "accuracy, %", "log score", "Brier", "ECE", "AURC"]
    rows = []
    for one in sorted(found, key=_place):
        clean = one["scores"]["clean"]
        cells = [_name(one), classes_label(one["run"]["classes"]), _seeds(one)]
        cells += [f"{100 * clean['accuracy']:.2f}", f"{clean['log_score']:.4f}".replace("-", "−")]
        cells += [f"{clean[key]:.4f}" for key in ("brier", "ece", "aurc")]
        cells += [f"{one['ood'][name]:.4f}" if name in one["ood"] else "–" for name in sets]
        rows.append(cells)
    return markdown_table([*head, *(f"AUROC, {name}" for name in sets)], rows)


def worse_table(found: Sequence[Found]) -> str:
    """Accuracy on corrupted images, a mean over severities, and by severity over all kinds."""
    head = ["model", "clean", *STRENGTHS, *(f"severity {s}" for s in SEVERITIES)]
    head += ["log score, all"]
    rows = []
    for one in sorted(found, key=_place):
        scores = one["scores"]
        by_kind = [[f"{kind}-{s}" for s in SEVERITIES] for kind in STRENGTHS]
        by_severity = [[f"{kind}-{s}" for kind in STRENGTHS] for s in SEVERITIES]
        every = [name for names in by_kind for name in names]
        cells = [f"{_name(one)}, {_seeds(one)}", f"{100 * scores['clean']['accuracy']:.2f}"]
        cells += [f"{100 * _mean(scores, n, 'accuracy'):.2f}" for n in by_kind + by_severity]
        rows.append([*cells, f"{_mean(scores, every, 'log_score'):.3f}".replace("-", "−")])
    return markdown_table(head, rows)


def exits_table(found: Sequence[Found], results: Sequence[Result]) -> str:
    """Accuracy and mean number of layers at each threshold; nothing where no depth is inferred."""
    rows = []
    for one in found:
        for point in one.get("exits", ()):
            beside = None if one["run"]["classes"] else at_equal_work(results, point["flops"])
            cells = [f"{_name(one)}, {_seeds(one)}", f"{point['threshold']:g}"]
            cells += [f"{point['layers']:.2f}", f"{point['flops'] / 1e9:.3f}"]
            cells += [f"{100 * point['accuracy']:.2f}", _signed(point["log_score"])]
            rows.append([*cells, "–" if beside is None else f"{100 * beside:.2f}"])
    head = ["model", "stops when so sure", "mean layers", "GFLOP", "accuracy, %", "log score"]
    head.append("a fixed depth with as many GFLOP, %")
    note = "\nFixed depths: on the line between the means of those Ω that were run.\n"
    return markdown_table(head, rows) + note if rows else ""


def summary_table(every: Mapping[str, Sequence[Found]]) -> str:
    """A row for each recipe and kind of model, means over seeds; nothing where none was kept."""
    sets = list(dict.fromkeys(n for found in every.values() for one in found for n in one["ood"]))
    head = ["recipe", "model", "classes", "seeds", "accuracy, %", "log score", "Brier", "ECE"]
    head += ["AURC", "corrupted, %", "log score", *(f"AUROC, {name}" for name in sets)]
    rows = []
    for recipe, found in every.items():
        kinds: dict[tuple[Any, ...], list[Found]] = {}
        for one in sorted(found, key=_place):
            kinds.setdefault((_name(one), tuple(one["run"]["classes"])), []).append(one)
        for (name, classes), alike in kinds.items():
            count = alike[0]["members"] if alike[0]["members"] > 1 else len(alike)
            scores = [one["scores"] for one in alike]
            clean = [score["clean"] for score in scores]
            worse = [[v for k, v in score.items() if k != "clean"] for score in scores]
            cells = [recipe, name, classes_label(classes), str(count)]
            cells.append(f"{100 * fmean(s['accuracy'] for s in clean):.2f}")
            cells.append(_signed(fmean(s["log_score"] for s in clean)))
            cells += [f"{fmean(s[key] for s in clean):.4f}" for key in ("brier", "ece", "aurc")]
            each = [score for one in worse for score in one]
            cells.append(f"{100 * fmean(s['accuracy'] for s in each):.2f}")
            cells.append(_signed(fmean(s["log_score"] for s in each)))
            for other in sets:
                known = [one["ood"][other] for one in alike if other in one["ood"]]
                cells.append(f"{fmean(known):.4f}" if known else "–")
            rows.append(cells)
    note = (
        "\nSingle models: means over seeds. Corrupted: noise, blur, contrast at five severities. "
        "AUROC: how often a test image gets more confidence than a foreign one.\n"
    )
    return markdown_table(head, rows) + note if rows else ""


def _signed(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


Looks = Mapping[str, tuple[Sequence[Found], Sequence[Result]]]
"""What was seen of the kept models of each recipe, and its runs."""
SIZES = {"exits.svg": (9.6, 4.4), "reliability.svg": (7.6, 4.2)}


def exits(figure: "Figure", looks: Looks) -> None:
    """Draw accuracy against mean work: early exits, one depth for all rows, networks Ω."""
    shown = [
        (recipe, one)
        for recipe, (found, _) in looks.items()
        for one in _first_seeds([one for one in found if "exits" in one])
    ]
    if not shown:
        raise NothingToDraw("no kept model infers a depth on all ten classes")
    panels = figure.subplots(1, 2, sharey=True)
    handles = []
    for index, (recipe, one) in enumerate(shown):
        colour = ORANGE if not index else _COLOURS[(index - 1) % len(_COLOURS)]
        name = _of(recipe, _name(one))
        drawings: list[tuple[str, dict[str, Any]]] = [
            ("exits", {"marker": "o", "label": f"{name},\nrows stop"}),
            ("alone", {"linestyle": ":", "label": f"{name},\nall at one depth"}),
        ]
        for kind, style in drawings:
            for axes, key, unit in ((panels[0], "layers", 1.0), (panels[1], "flops", 1e9)):
                points = [(p[key] / unit, 100 * p["accuracy"]) for p in one[kind]]
                drawn = figures.line(axes, points, color=colour, **style)
            handles.append(drawn)
    for index, (recipe, (_, results)) in enumerate(looks.items()):
        fixed = _fixed(results)
        if fixed:
            mark = {"color": INK, "marker": _MARKS[index % len(_MARKS)], "linestyle": "none"}
            mark["label"] = _of(recipe, "Ω, fixed depth")
            handles.append(figures.line(panels[0], [(d, 100 * a) for d, _, a in fixed], **mark))
            figures.line(panels[1], [(f / 1e9, 100 * a) for _, f, a in fixed], **mark)
    heights = [y for axes in panels for line in axes.lines for y in line.get_ydata()]
    # What shallow depths say alone is far below everything that matters.
    low = max(min(heights), max(heights) - _SHOWN)
    panels[0].set_ylim(low - 0.3, max(heights) + 0.3)
    for axes in panels:
        points = [xy for line in axes.lines for xy in zip(*line.get_data(), strict=True)]
        places = [x for x, y in points if y >= low]
        margin = 0.05 * (max(places) - min(places))
        axes.set_xlim(min(places) - margin, max(places) + margin)
    figures.label(panels[0], "mean number of layers", "test accuracy, %")
    figures.label(panels[1], "GFLOP of an image", "")
    figures.legend(figure, handles)
    figures.title(figure, "Accuracy when a row stops at the first sure depth")


def reliability(figure: "Figure", looks: Looks) -> None:
    """Draw how often predictions of each confidence are right, less that confidence."""
    shown = [(recipe, one) for recipe, (found, _) in looks.items() for one in _first_seeds(found)]
    if not shown:
        raise NothingToDraw("no model of all ten classes was kept")
    axes = figure.subplots()
    axes.axhline(0, color=INK, linestyle="--", linewidth=1)
    handles = []
    kinds = list(dict.fromkeys((recipe, one["run"]["model"]) for recipe, one in shown))
    kinds.sort(key=lambda kind: kind[1] != "udn")  # orange is the UDN's
    colours = dict(zip(kinds, itertools.cycle((ORANGE, *_COLOURS)), strict=False))
    for recipe, one in shown:
        points = one["reliability"]
        pairs = zip(points["confidence"], points["accuracy"], points["count"], strict=True)
        line = [(100 * c, 100 * (a - c)) for c, a, count in pairs if count >= _ENOUGH]
        style: dict[str, Any] = {"color": colours[recipe, one["run"]["model"]], "marker": "o"}
        style["label"] = _of(recipe, _name(one))
        style |= {"linestyle": "--"} if one["members"] > 1 else {}
        style |= {"linestyle": ":"} if one.get("passes") else {}
        handles.append(figures.line(axes, line, **style))
    figures.label(axes, "confidence, %", "right − confidence, points")
    figures.legend(figure, handles)
    figures.title(figure, f"Calibration: bins of {_ENOUGH} test images or more")


def _of(recipe: str, name: str) -> str:
    return f"{recipe}: {name}" if recipe else name


def _fixed(results: Sequence[Result]) -> list[tuple[float, float, float]]:
    """Depth, FLOPs and accuracy of networks Ω, means over seeds, by their depth."""
    found = [r for r in select(results, classes=()) if "flops" in r]
    depths = {fixed_depth(r["run"]["model"]) for r in found} - {None}
    return [
        (
            float(depth),
            spread_of(select(found, str(depth)), "flops").mean,
            spread_of(select(found, str(depth)), "test_accuracy").mean,
        )
        for depth in sorted(d for d in depths if d is not None)
    ]


def at_equal_work(results: Sequence[Result], flops: float) -> float | None:
    """The accuracy of a fixed depth with so many FLOPs, on the line between those that were run.

    None outside of these.
    """
    points = sorted((f, a) for _, f, a in _fixed(results))
    if len(points) < 2 or not points[0][0] <= flops <= points[-1][0]:
        return None
    return float(np.interp(flops, [f for f, _ in points], [a for _, a in points]))


def read_found(folder: Path) -> list[dict[str, Any]]:
    """What an evaluation wrote down, if there was one."""
    path = folder / "evaluation.json"
    return list(records.read_json(path)["evaluated"]) if path.is_file() else []


def write(folder: Path, found: Sequence[Found]) -> str:
    """Write `evaluation.md`, `evaluation.json` and the figures; returns the tables."""
    results = read(folder)
    text = markdown(found, results)
    records.write_text(folder / "evaluation.md", text)
    records.write_json(folder / "evaluation.json", {"evaluated": list(found)})
    drawings: dict[str, Callable[..., None]] = {"exits.svg": exits, "reliability.svg": reliability}
    for name, draw in drawings.items():
        paint = partial(draw, looks={"": (found, results)})
        try:
            records.write_text(folder / name, figures.render(paint, SIZES[name]))
        except NothingToDraw as error:
            (folder / name).unlink(missing_ok=True)
            text += f"\n{name} is not drawn: {error}.\n"
    records.write_text(folder / "evaluation.md", text)
    return text


def _first_seeds(found: Sequence[Found]) -> list[Found]:
    """One model of each kind and each ensemble, of all ten classes."""
    kinds: dict[str, Found] = {}
    for one in sorted(found, key=_place):
        if not one["run"]["classes"]:
            kinds.setdefault(_name(one), one)
    return list(kinds.values())


def _mean(scores: Mapping[str, Any], names: Sequence[str], key: str) -> float:
    return sum(float(scores[name][key]) for name in names) / len(names)


def _name(one: Found) -> str:
    run = one["run"]
    how = f", {run['rule']} from {run['lambda0']:g}" if run["model"] == "udn" else ""
    several = f"{one['members']} × " if one["members"] > 1 else ""
    dropped = f", {one['passes']} passes of dropout" if one.get("passes") else ""
    return f"{several}{label(run['model'])}{how}{dropped}"


def _seeds(one: Found) -> str:
    return "several" if one["members"] > 1 else f"seed {one['run']['seed']}"


def _passes(one: Found) -> int:
    return int(one.get("passes", 0))


def _place(one: Found) -> tuple[Any, ...]:
    run = one["run"]
    return tuple(run["classes"]), order(run["model"]), one["members"], _passes(one), run["seed"]
