"""Table and figures of the spiral study, from its results alone."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from unbounded.data import spiral
from unbounded.experiments import figures, records

Row = dict[str, Any]

PAPER = {
    "omega3": (87.4, 0.6),
    "omega4": (89.3, 0.9),
    "omega5": (84.8, 3.6),
    "dun10": (90.5, 0.7),
    "udn": (91.7, 1.1),
}
"""Table 1 of the paper: mean and standard deviation in percent."""
SHOWN = (0.0, 2.0, 6.0, 10.0, 14.0, 20.0, 26.0, 30.0)
ORANGE, BLUE, GREEN, PURPLE = "#e07b00", "#2563a8", "#2f855a", "#7c4dbd"
_COLOURS = {
    "udn": ORANGE,
    "udn-concentrated": PURPLE,
    "dun10": BLUE,
    "dun10-original": GREEN,
}
_SHORT = {
    "udn-concentrated": "UDN, concentrated",
    "dun10": "DUN-10",
    "dun10-original": "DUN-10, original",
}
GREYS = ("#c9ced6", "#b4bac5", "#9fa7b4", "#8a93a3", "#767f91", "#636d80", "#525c70", "#434d60")


def label(model: str) -> str:
    """The name of a model for people."""
    if model.startswith("omega"):
        return "Ω" + model.removeprefix("omega").translate(
            str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
        )
    return {
        "udn": "UDN",
        "udn-concentrated": "UDN, concentrated posterior",
        "dun10": "DUN-10 (UDN authors’ variant)",
        "dun10-original": "DUN-10 (as its own paper defines it)",
        "nearest-neighbours": "nearest neighbours",
        "rbf-svm": "RBF support vector machine",
        "bayes": "limit (generator known)",
    }[model]


def summary(runs: Sequence[Row], references: Sequence[Row]) -> list[Row]:
    """Accuracy averaged over ω: its mean and standard deviation over seeds, in percent."""
    rows = []
    for key in dict.fromkeys((r["init"], r["lr"], r["model"]) for r in runs):
        mine = [r for r in runs if (r["init"], r["lr"], r["model"]) == key]
        rows.append({"init": key[0], "lr": key[1], "model": key[2], **_over_seeds(mine)})
    for model in dict.fromkeys(r["model"] for r in references):
        mine = [r for r in references if r["model"] == model]
        rows.append({"init": None, "lr": None, "model": model, **_over_seeds(mine)})
    return rows


def table(results: Row) -> str:
    """Table 1 beside the paper's, in Markdown."""
    rows = results["summary"]
    settings = list(dict.fromkeys((r["init"], r["lr"]) for r in rows if r["init"] is not None))
    heads = [f"{_init(init)}, rate {lr:g}" for init, lr in settings]
    lines = [
        "| model | paper | " + " | ".join(heads) + " |",
        "|---|---|" + "---|" * len(settings),
    ]
    models = dict.fromkeys(r["model"] for r in rows if r["init"] is not None)
    best = {s: max(r["mean"] for r in rows if (r["init"], r["lr"]) == s) for s in settings}
    for model in sorted(models, key=_order):
        paper = PAPER.get(model)
        cells = ["–" if paper is None else f"{paper[0]} ± {paper[1]}"]
        for setting in settings:
            found = [r for r in rows if r["model"] == model and (r["init"], r["lr"]) == setting]
            cells.append(_cell(found[0], best[setting]) if found else "–")
        lines.append(f"| {label(model)} | " + " | ".join(cells) + " |")
    for row in rows:
        if row["init"] is None:
            cells = [_cell(row), *["" for _ in settings[1:]]] if settings else [_cell(row)]
            lines.append(f"| {label(row['model'])} | – | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(out: Path, results: Row) -> list[Path]:
    """Write results, table and figures; returns their paths."""
    settings = results["configuration"]
    records.write_json(out / "results.json", results)
    records.write_text(out / "table.md", _page(results))
    drawn = {"data.svg": data_figure(settings["omegas"])}
    for init in settings["init"]:
        for lr in settings["lr"]:
            mine = [r for r in results["runs"] if (r["init"], r["lr"]) == (init, lr)]
            name = f"{init}-lr{lr:g}"
            drawn[f"accuracy-{name}.svg"] = accuracy_figure(mine, results["references"], init, lr)
            for model in sorted({r["model"] for r in mine if r["model"].startswith("udn")}):
                ours = [r for r in mine if r["model"] == model]
                kind = model.replace("udn", "depth")
                drawn[f"{kind}-{name}.svg"] = depth_figure(ours, label(model), init, lr)
    for name, text in drawn.items():
        records.write_text(out / name, text)
    return [out / name for name in ("results.json", "table.md", *drawn)]


def data_figure(omegas: Sequence[float]) -> str:
    """Training parts of some of the spirals."""
    chosen = list(omegas)
    if len(chosen) > len(SHOWN):
        chosen = [omega for omega in omegas if omega in SHOWN] or chosen[: len(SHOWN)]
    panels = {}
    for omega in chosen:
        x, y = spiral(omega)
        panels[f"ω = {omega:g}"] = [
            (x[y == c, 0].tolist(), x[y == c, 1].tolist(), colour)
            for c, colour in ((0, BLUE), (1, ORANGE))
        ]
    return figures.scatter_panels(panels, title="Spirals D(ω): two branches, 1024 points")


def accuracy_figure(runs: Sequence[Row], references: Sequence[Row], init: str, lr: float) -> str:
    """Test accuracy against ω, with bands of one standard deviation over seeds."""
    omegas = sorted({r["omega"] for r in runs})
    lines: dict[str, figures.Line] = {}
    models = sorted(dict.fromkeys(r["model"] for r in runs), key=_order)
    fixed = [m for m in models if m.startswith("omega")]
    for model in models:
        mine = [r for r in runs if r["model"] == model]
        mean, sd = _by_omega(mine, omegas)
        colour = _COLOURS.get(model)
        if colour is None:
            colour = GREYS[fixed.index(model) * len(GREYS) // max(1, len(fixed))]
        banded = not model.startswith("omega") or len(fixed) <= 4
        lines[_SHORT.get(model) or label(model)] = figures.Line(
            mean,
            [m - s for m, s in zip(mean, sd, strict=True)] if banded else None,
            [m + s for m, s in zip(mean, sd, strict=True)] if banded else None,
            colour,
            2.6 if model.startswith("udn") else 1.6,
        )
    low = min((min(line.low or line.ys) for line in lines.values()), default=50.0)
    limits = {r["omega"]: 100 * r["test_accuracy"] for r in references if r["model"] == "bayes"}
    if limits:
        lines["limit"] = figures.Line(
            [limits.get(omega, float("nan")) for omega in omegas], colour=figures.INK, dashed=True
        )
    return figures.line_figure(
        omegas,
        lines,
        title=f"Test accuracy on D(ω), {_init(init)}, rate {lr:g}",
        x_label="rotation speed ω",
        y_label="test accuracy, %",
        y_range=(5 * (low // 5), 101),
    )


def depth_figure(runs: Sequence[Row], name: str, init: str, lr: float) -> str:
    """Box plots of a UDN's posterior mean depth against ω."""
    boxes: dict[float, list[float]] = {}
    for row in runs:
        boxes.setdefault(row["omega"], []).append(row["depth_mean"])
    return figures.box_figure(
        boxes,
        title=f"Posterior mean depth ({name}), {_init(init)}, rate {lr:g}",
        x_label="rotation speed ω",
        y_label="E[ℓ]",
        colour=ORANGE,
    )


def _page(results: Row) -> str:
    """The table with what is needed to read it."""
    settings, versions = results["configuration"], results["versions"]
    seconds = results["seconds"]["training"]
    each = ", ".join(f"{name} {time:.0f} s" for name, time in seconds.items())
    lines = [
        "# Spirals: test accuracy in percent, averaged over ω",
        "",
        f"ω ∈ {{{', '.join(f'{o:g}' for o in settings['omegas'])}}}, {settings['seeds']} seeds, "
        f"{settings['epochs']} epochs, width {settings['width']}, best validation epoch; "
        "± is the standard deviation over seeds.",
        "",
        table(results),
        "",
        f"Trained on {versions['device']} with torch {versions['torch']} in "
        f"{sum(seconds.values()):.0f} s ({each}).",
    ]
    extras = {k: settings[k] for k in ("average", "members") if settings[k] not in (None, 1)}
    if settings["schedule"] != "constant":
        extras["schedule"] = settings["schedule"]
    if extras:
        lines.append(f"For every network: {', '.join(f'{k} {v}' for k, v in extras.items())}.")
    ratios = {k: settings[k] for k in ("rate", "depth_lr_ratio", "dun_depth_lr_ratio")}
    ratios["depth_warmup"] = settings["depth_warmup"]
    if "udn-concentrated" in settings["models"]:
        ratios |= {k: settings[k] for k in ("concentrated_rate", "concentration")}
    lines.append(f"Depth: {', '.join(f'{k} {v:g}' for k, v in ratios.items())}.")
    return "\n".join(lines) + "\n"


def _over_seeds(rows: Sequence[Row]) -> Row:
    by_seed: dict[Any, list[float]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(100 * row["test_accuracy"])
    means = [statistics.fmean(values) for values in by_seed.values()]
    found: Row = {
        "mean": round(statistics.fmean(means), 3),
        "sd": round(statistics.stdev(means), 3) if len(means) > 1 else None,
        "seeds": len(means),
    }
    stopped = sorted({why for row in rows for why in row.get("stopped", [])} - {"epochs"})
    return found | ({"stopped": stopped} if stopped else {})


def _by_omega(rows: Sequence[Row], omegas: Iterable[float]) -> tuple[list[float], list[float]]:
    means, deviations = [], []
    for omega in omegas:
        values = [100 * r["test_accuracy"] for r in rows if r["omega"] == omega]
        means.append(statistics.fmean(values) if values else float("nan"))
        deviations.append(statistics.stdev(values) if len(values) > 1 else 0.0)
    return means, deviations


def _cell(row: Row, best: float | None = None) -> str:
    text = f"{row['mean']:.1f}" + (f" ± {row['sd']:.1f}" if row["sd"] is not None else "")
    return f"**{text}**" if best is not None and row["mean"] == best else text


def _init(init: str) -> str:
    return {"default": "default initialisation", "he": "He initialisation"}.get(
        init, f"{init} initialisation"
    )


_LAST = {"dun10-original": (1, 0), "dun10": (1, 1), "udn": (2, 0), "udn-concentrated": (2, 1)}


def _order(model: str) -> tuple[int, int]:
    if model.startswith("omega"):
        return 0, int(model.removeprefix("omega"))
    return _LAST[model]
