"""Table and figures of an evaluation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbounded.data.corruptions import SEVERITIES, STRENGTHS
from unbounded.experiments import figures, records
from unbounded.experiments.cifar10.models import fixed_depth, label, order
from unbounded.experiments.cifar10.plan import classes_label
from unbounded.experiments.cifar10.results import Result, read, select
from unbounded.experiments.figures import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, NothingToDraw
from unbounded.experiments.pages import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
_COLOURS = (BLUE, GREEN, PINK, RED, SKY)


def markdown(found: Sequence[Found]) -> str:
    """Scores, robustness and exits as one page."""
    parts = ["### Scores of kept models, and of ensembles of them\n", scores_table(found)]
    parts += ["### Corrupted images: accuracy in percent, mean of each kind\n", worse_table(found)]
    exits = exits_table(found)
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


def exits_table(found: Sequence[Found]) -> str:
    """Accuracy and mean number of layers at each threshold; nothing where no depth is inferred."""
    with_exits = [one for one in found if "exits" in one]
    rows = []
    for one in with_exits:
        for point in one["exits"]:
            cells = [f"{_name(one)}, {_seeds(one)}", f"{point['threshold']:g}"]
            cells += [f"{point['layers']:.2f}", f"{point['flops'] / 1e9:.3f}"]
            cells += [f"{100 * point['accuracy']:.2f}"]
            rows.append([*cells, f"{point['log_score']:.4f}".replace("-", "−")])
    head = ["model", "stops when so sure", "mean layers", "GFLOP", "accuracy, %", "log score"]
    return markdown_table(head, rows) if rows else ""


def exits(figure: "Figure", found: Sequence[Found], results: Sequence[Result]) -> None:
    """Draw accuracy against mean work: early exits, one depth for all rows, networks Ω."""
    shown = _first_seeds([one for one in found if "exits" in one])
    if not shown:
        raise NothingToDraw("no kept model infers a depth on all ten classes")
    panels = figure.subplots(1, 2, sharey=True)
    handles = []
    for index, one in enumerate(shown):
        colour = _colour(one, index)
        for axes, key, unit in ((panels[0], "layers", 1.0), (panels[1], "flops", 1e9)):
            early = [(p[key] / unit, 100 * p["accuracy"]) for p in one["exits"]]
            style = {"color": colour, "marker": "o", "label": f"{_name(one)}, rows stop"}
            drawn = figures.line(axes, early, **style)
            if key == "layers":
                handles.append(drawn)
            alone = [(p[key] / unit, 100 * p["accuracy"]) for p in one["alone"]]
            style = {"color": colour, "linestyle": ":", "label": f"{_name(one)}, all at one depth"}
            drawn = figures.line(axes, alone, **style)
            if key == "layers":
                handles.append(drawn)
    fixed = [r for r in select(results, classes=()) if fixed_depth(r["run"]["model"])]
    points = [
        (float(r["run"]["model"]), float(r["flops"]), 100 * r["test_accuracy"])
        for r in fixed
        if "flops" in r
    ]
    if points:
        style = {"color": INK, "marker": "x", "linestyle": "none", "label": "Ω, fixed depth"}
        handles.append(figures.line(panels[0], [(d, a) for d, _, a in points], **style))
        figures.line(panels[1], [(f / 1e9, a) for _, f, a in points], **style)
    figures.label(panels[0], "mean number of layers", "test accuracy, %")
    figures.label(panels[1], "GFLOP of an image", "")
    figures.legend(figure, handles)
    figures.title(figure, "Accuracy when a row stops at the first sure depth")


def reliability(figure: "Figure", found: Sequence[Found]) -> None:
    """Draw how often predictions of each confidence are right, less that confidence."""
    shown = _first_seeds(found)
    if not shown:
        raise NothingToDraw("no model of all ten classes was kept")
    axes = figure.subplots()
    axes.axhline(0, color=INK, linestyle="--", linewidth=1)
    handles = []
    for index, one in enumerate(shown):
        points = one["reliability"]
        pairs = zip(points["confidence"], points["accuracy"], points["count"], strict=True)
        line = [(100 * c, 100 * (a - c)) for c, a, count in pairs if count >= 20]
        style = {"color": _colour(one, index), "marker": "o", "label": _name(one)}
        style |= {"linestyle": "--"} if one["members"] > 1 else {}
        handles.append(figures.line(axes, line, **style))
    figures.label(axes, "confidence, %", "right − confidence, points")
    figures.legend(figure, handles)
    figures.title(figure, "Calibration: bins of 20 test images or more")


def write(folder: Path, found: Sequence[Found]) -> str:
    """Write `evaluation.md`, `evaluation.json` and the figures; returns the tables."""
    text = markdown(found)
    records.write_text(folder / "evaluation.md", text)
    records.write_json(folder / "evaluation.json", {"evaluated": list(found)})
    drawings: dict[str, tuple[Callable[..., None], tuple[float, float]]] = {
        "exits.svg": (partial(exits, found=found, results=read(folder)), (9.0, 4.2)),
        "reliability.svg": (partial(reliability, found=found), (7.6, 4.2)),
    }
    for name, (paint, size) in drawings.items():
        try:
            records.write_text(folder / name, figures.render(paint, size))
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


def _colour(one: Found, index: int) -> str:
    return ORANGE if one["run"]["model"] == "udn" else _COLOURS[index % len(_COLOURS)]


def _mean(scores: Mapping[str, Any], names: Sequence[str], key: str) -> float:
    return sum(float(scores[name][key]) for name in names) / len(names)


def _name(one: Found) -> str:
    run = one["run"]
    how = f", {run['rule']} from {run['lambda0']:g}" if run["model"] == "udn" else ""
    several = f"{one['members']} × " if one["members"] > 1 else ""
    return f"{several}{label(run['model'])}{how}"


def _seeds(one: Found) -> str:
    return "several" if one["members"] > 1 else f"seed {one['run']['seed']}"


def _place(one: Found) -> tuple[Any, ...]:
    run = one["run"]
    return tuple(run["classes"]), order(run["model"]), one["members"], run["seed"]
