"""Table and figures of a study that was run: `python -m unbounded.experiments.spiral.table FOLDER`.

Reads `results.json` in FOLDER, and writes `table.md` and the figures beside it.
"""

import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unbounded.experiments import records
from unbounded.experiments.figures import SIZE
from unbounded.experiments.pages import (
    SUBSCRIPTS,
    markdown_table,
    plus_minus,
    publish,
    rewrite,
)
from unbounded.experiments.spiral import figures
from unbounded.experiments.spiral.recipe import SETTLED

Row = dict[str, Any]

PAPER = {
    "omega3": (87.4, 0.6),
    "omega4": (89.3, 0.9),
    "omega5": (84.8, 3.6),
    "dun10": (90.5, 0.7),
    "udn": (91.7, 1.1),
}
"""Table 1 of the paper: mean and standard deviation in percent."""
_SHORT = {
    "udn-concentrated": "UDN, concentrated",
    "dun10": "DUN-10",
    "dun10-original": "DUN-10, original",
}


def label(model: str) -> str:
    """The name of a model for people."""
    if model.startswith("omega"):
        return "Ω" + model.removeprefix("omega").translate(SUBSCRIPTS)
    if model.startswith("resnet"):
        return f"ResNet-like, {model.removeprefix('resnet')} layers"
    return {
        "node": "NODE",
        "anode": "ANODE",
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
    keys: list[tuple[Any, Any, str]] = [(r["init"], r["lr"], r["model"]) for r in runs]
    keys += [(None, None, r["model"]) for r in references]
    for key in dict.fromkeys(keys):
        mine = [r for r, its in zip([*runs, *references], keys, strict=True) if its == key]
        rows.append({"init": key[0], "lr": key[1], "model": key[2], **_over_seeds(mine)})
    return rows


def table(results: Row) -> str:
    """Table 1 beside the paper's, in Markdown."""
    rows = results["summary"]
    settings = list(dict.fromkeys((r["init"], r["lr"]) for r in rows if r["init"] is not None))
    head = ["model", "paper", *(f"{_init(init)}, rate {lr:g}" for init, lr in settings)]
    models = dict.fromkeys(r["model"] for r in rows if r["init"] is not None)
    best = {s: max(r["mean"] for r in rows if (r["init"], r["lr"]) == s) for s in settings}
    lines = []
    for model in sorted(models, key=_order):
        cells = [label(model), plus_minus(*PAPER[model], 1) if model in PAPER else "–"]
        for setting in settings:
            found = [r for r in rows if r["model"] == model and (r["init"], r["lr"]) == setting]
            cells.append(_cell(found[0], best[setting]) if found else "–")
        lines.append(cells)
    for row in rows:
        if row["init"] is None:
            lines.append([label(row["model"]), "–", _cell(row), *[""] * len(settings[1:])])
    return markdown_table(head, lines)


def write(folder: Path) -> str:
    """Write `table.md` and the figures of the results in a folder; returns the page."""
    results: Row = records.read_json(folder / "results.json")
    settings = results["configuration"]
    paints: dict[str, Callable[[Any], None]] = {
        "data.svg": partial(figures.data, omegas=settings["omegas"])
    }
    for init, lr in itertools.product(settings["init"], settings["lr"]):
        mine = [r for r in results["runs"] if (r["init"], r["lr"]) == (init, lr)]
        models = sorted({r["model"] for r in mine}, key=_order)
        name, setting = f"{init}-lr{lr:g}", f"{_init(init)}, rate {lr:g}"
        paints[f"accuracy-{name}.svg"] = partial(
            figures.accuracy,
            runs=mine,
            references=results["references"],
            names={model: _SHORT.get(model) or label(model) for model in models},
            setting=setting,
        )
        for model in models:
            if model.startswith("udn"):
                ours = [r for r in mine if r["model"] == model]
                paints[f"{model.replace('udn', 'depth')}-{name}.svg"] = partial(
                    figures.depth, runs=ours, model=label(model), setting=setting
                )
    return publish(folder, _page(results), {name: (paint, SIZE) for name, paint in paints.items()})


main = partial(rewrite, write, __doc__, "folder with results.json")


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
        f"Trained on {versions['device']} with torch {versions['torch']} in "
        f"{sum(seconds.values()):.0f} s ({each}).",
    ]
    extras = {k: settings[k] for k in ("average", "members") if settings[k] not in (None, 1)}
    if settings["schedule"] != "constant":
        extras["schedule"] = settings["schedule"]
    if extras:
        lines.append(f"For every network: {', '.join(f'{k} {v}' for k, v in extras.items())}.")
    names = ["rate", "depth_lr_ratio", "dun_depth_lr_ratio", "depth_warmup"]
    if "udn-concentrated" in settings["models"]:
        names += ["concentrated_rate", "concentration"]
    ratios = {k: settings[k] for k in names if k in settings}  # older results have fewer
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


def _cell(row: Row, best: float | None = None) -> str:
    text = plus_minus(row["mean"], row["sd"], 1)
    return f"**{text}**" if best is not None and row["mean"] == best else text


def _init(init: str) -> str:
    if init == SETTLED.name:
        return "our recipe"
    return f"{'He' if init == 'he' else init} initialisation"


_LAST = {
    name: (place, 0)
    for place, name in enumerate(
        ("node", "anode", "dun10-original", "dun10", "udn", "udn-concentrated"), 2
    )
}


def _order(model: str) -> tuple[int, int]:
    if model.startswith("omega"):
        return 0, int(model.removeprefix("omega"))
    if model.startswith("resnet"):
        return 1, int(model.removeprefix("resnet"))
    return _LAST[model]


if __name__ == "__main__":
    sys.exit(main())
