"""`unbounded inspect`: what a model file holds."""

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

from unbounded.cli import common
from unbounded.cli.common import Console
from unbounded.printing import one_line
from unbounded.tables.text import count_of

NAME = "inspect"
HELP = "show what a model file holds"
DESCRIPTION = """\
Show what a model file holds: what it predicts from what, the posterior over depth, the layers
and their sizes, and how training went. Works for every file of this library."""
EPILOG = """\
examples:
  unbounded inspect house.udn
  unbounded inspect house.udn --json | jq .depth.mean
"""
_SHOWN_EPOCHS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded inspect`."""
    parser.add_argument("model", type=Path, help="a model file")
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Print the parts."""
    from unbounded.estimators import files as estimator_files
    from unbounded.estimators.ensemble import average_probs, depth_probs
    from unbounded.files import PARTS, load, read
    from unbounded.report.terminal import depth_bars
    from unbounded.tables import TableModel

    console = Console(options)
    contents = read(options.model)  # the file is opened once, whatever it holds
    header, extra = contents.header, contents.extra
    table_model = estimator = None
    if estimator_files.holds_estimator(contents):
        if "table" in extra:
            table_model = TableModel.load(contents, "cpu")
            estimator = table_model.estimator
        else:
            estimator = estimator_files.load(contents, device="cpu")
    model = load(contents) if estimator is None else estimator.model_
    members = [model] if estimator is None else estimator.members_
    first = min(member.support()[0] for member in members)
    last = max(member.support()[1] for member in members)
    probs = average_probs([depth_probs(member) for member in members])[first - 1 :].tolist()
    mean = sum(p * depth for depth, p in enumerate(probs, first))
    modules = _modules(model)
    total = sum(p.numel() for member in members for p in member.parameters())
    several = f" in {len(members)} networks; below is the first of them" if members[1:] else ""
    parts = {part: _part(header.get(part)) for part in PARTS}
    console.say(f"{one_line(options.model)}: {one_line(_what(table_model, estimator))}\n")
    console.say(depth_bars(probs, first))
    size = count_of(total, "parameter")
    console.say(f"\nexpected depth {mean:.2f}, at most {last}; {size}{several}\n")
    console.say(common.columns_of_text([[f"  {k.replace('_', ' ')}", v] for k, v in parts.items()]))
    console.say("\n" + _layer_lines(modules))
    history: dict[str, Any] = {} if estimator is None else extra["estimator"]["history"]
    if history.get("rows"):
        console.say("\n" + _history_lines(history, extra["estimator"]))
    if table_model is not None:
        console.say("\n" + common.columns_of_text(common.column_rows(table_model.encoding)))
    console.result(
        {
            "path": options.model,
            "format": header["format"],
            "what": _what(table_model, estimator),
            "depth": {"first": first, "probs": probs, "mean": mean, "max": last},
            "parts": parts,
            "parameters": total,
            "networks": len(members),
            "modules": modules,
            "history": history.get("rows", []),
            "births": history.get("births", []),
            **_of_table(table_model),
        }
    )


def _of_table(table_model: Any) -> dict[str, Any]:
    """What the document says of the table; nothing if there is none."""
    if table_model is None:
        return dict.fromkeys(("target", "columns", "info"))
    listed = table_model.encoding.listing()
    columns = [{key: one[key] for key in ("name", "kind", "why")} for one in listed]
    target = table_model.target.to_dict()
    return {"target": target, "columns": columns, "info": table_model.info}


def _what(table_model: Any, estimator: Any) -> str:
    if table_model is None:
        kind = type(estimator).__name__
        return "a network of unbounded depth" if estimator is None else f"a fitted {kind}"
    target, info = table_model.target, table_model.info
    count = len(table_model.encoding.used)
    what = f"{len(target.classes)} classes" if target.is_classes else "a number"
    return (
        f"predicts {target.name} ({what}) from {count_of(count, 'column')}, learnt from "
        f"{info.get('rows', 0):,} rows of {info.get('table', 'a table')}"
    )


def _part(described: Any) -> str:
    """`Dense(in_features=10, …)` from the header."""
    config = (described or {}).get("config")
    kind = (described or {}).get("kind", "?")
    if config is None:
        return f"{kind} (of the user's own)"
    shown = ", ".join(f"{k}={_value(v)}" for k, v in config.items() if v not in (None, False))
    return f"{kind}({shown})"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{k}={v}" for k, v in value.items() if k != "kind")
        return f"{value.get('kind', '')}({inner})"
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        lengths = sorted({len(item) for item in value})
        of = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        return f"[{count_of(len(value), 'list')} of {of} numbers]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _modules(model: Any) -> list[dict[str, Any]]:
    """Every layer and head that is born, with the shapes of its parameters."""
    return [
        {
            "role": role,
            "depth": int(depth),
            "kind": type(module).__name__,
            "parameters": sum(p.numel() for p in module.parameters()),
            "shapes": {name: list(p.shape) for name, p in module.named_parameters()},
        }
        for role, modules in (("layer", model.network.hidden), ("head", model.network.heads))
        for depth, module in modules.items()
    ]


def _layer_lines(modules: list[dict[str, Any]]) -> str:
    """Layers and heads, those that follow one another and are alike in one line."""
    rows = [["  born", "kind", "weights", "parameters"]]
    for _, alike in groupby(modules, lambda m: (m["role"], m["kind"], m["shapes"])):
        first, *others = alike
        depth, plural, each = str(first["depth"]), "", ""
        if others:
            depth, plural, each = f"{depth}–{others[-1]['depth']}", "s", " each"
        weights = ", ".join("×".join(map(str, shape)) for shape in first["shapes"].values())
        born, size = f"  {first['role']}{plural} {depth}", f"{first['parameters']:,}{each}"
        rows.append([born, first["kind"], weights or "none", size])
    return common.columns_of_text(rows)


def _score(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def _history_lines(history: dict[str, Any], estimator: dict[str, Any]) -> str:
    rows = history["rows"]
    best = estimator.get("best_epoch")
    picks = {round(i * (len(rows) - 1) / (_SHOWN_EPOCHS - 1)) for i in range(_SHOWN_EPOCHS)}
    picks |= {i for i, row in enumerate(rows) if row["epoch"] == best}
    scores = [name for name in rows[-1] if name.startswith("val_")]
    lines = [["  epoch", "ELBO", "E[ℓ]", "m", *(n.replace("_", " ") for n in scores)]]
    for index in sorted(picks):
        row = rows[index]
        mark = "*" if row["epoch"] == best else ""
        line = [f"  {row['epoch']}{mark}", f"{row['elbo']:,.1f}", f"{row['depth_mean']:.2f}"]
        lines.append([*line, str(row["max_depth"]), *(_score(row.get(name)) for name in scores)])
    born = ", ".join(f"{b['depth']} (epoch {b['epoch']})" for b in history.get("births", []))
    text = common.columns_of_text(lines, right=range(1, len(lines[0])))
    again = estimator.get("refit_history")
    kept = "* kept" if not again else f"* best; then {len(again['rows'])} epochs anew on all rows"
    return (
        f"{text}\n  {kept}; ended by {estimator.get('stopped')} after {len(rows)} epochs; "
        f"layers born on the way: {born or 'none'}"
    )
