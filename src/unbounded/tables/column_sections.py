"""What a page shows of the columns: which matter, what was learnt from them, how they were read."""

from typing import Any

from unbounded.report import page, svg
from unbounded.report.axes import rough
from unbounded.report.page import Section
from unbounded.tables.effects import EFFECT_COLUMNS
from unbounded.tables.model import TableModel

_BARS = 25  # columns whose importance is drawn
_TABLE_COLUMNS = 200


def importance(model: TableModel, found: dict[str, Any]) -> Section:
    """What shuffling each column costs, with whiskers over shuffles."""
    rows: list[dict[str, Any]] = found["importance"]
    shown = rows[:_BARS]
    classes = found["task"] == "classification"
    figure = svg.bar_chart(
        [row["loss"] for row in shown],
        [row["column"] for row in shown],
        title=f"{'Log score lost' if classes else 'RMSE added'} by shuffling a column",
        x_label="",
        y_label="log score lost, nats" if classes else "RMSE added, in the target's units",
        bounds=[(row["loss"] - row["sd"], row["loss"] + row["sd"]) for row in shown],
        horizontal=True,
    )
    text = (
        "How much worse the predictions become when the values of one column are shuffled among "
        "rows that the network did not learn from (up to 1,000 of them): permutation importance. "
        "The whiskers are a standard deviation over shuffles to either side. Columns that say the "
        "same share their importance; near nothing means that the others do without."
    )
    used = len(model.encoding.used)
    if len(rows) < used:
        text += (
            f"\n\nOf {used:,} columns the {len(rows)} were shuffled to which the predictions react "
            f"most (by their gradient); the other {used - len(rows):,} were left out."
        )
    if len(rows) > _BARS:
        text += f"\n\nThe {len(rows) - _BARS} least important of {len(rows)} are not drawn."
    return Section("Which columns matter?", text, [figure], wide=True)


def effects(model: TableModel, found: dict[str, Any]) -> Section:
    """Partial dependence on the foremost columns, each chart under its finding."""
    shown: list[dict[str, Any]] = found["effects"]
    target = model.target
    if target.is_classes:
        names = [name for one in shown[:1] for name in one["curves"]]
        label = f"probability of {names[0]}" if len(names) == 1 else "probability"
    else:
        label = f"mean prediction of {target.name}"
    text = (
        "The mean prediction if all rows had the same value in one column and kept their others: "
        "partial dependence, on up to 300 rows. It says what the network has learnt, not what "
        "would happen if one changed the column. Grey bars: where the rows are."
    )
    # One scale for all: what is flat looks flat.
    means = [mean for one in shown for curve in one["curves"].values() for mean in curve]
    ends = [min(means), max(means)]
    left = sum(row["loss"] > max(2 * row["sd"], 0.0) for row in found["importance"]) - len(shown)
    if left > 0 and len(shown) == EFFECT_COLUMNS:
        text += f" {left} more columns matter and are not drawn: these are the first {len(shown)}."
    return Section(
        "What was learnt from them?",
        text,
        [_effect(one, label, ends) for one in shown],
        full=True,
        across=2 if len(shown) in (2, 4) else min(len(shown), 3),
    )


def _effect(one: dict[str, Any], label: str, ends: list[float]) -> str:
    title = one["finding"][:1].upper() + one["finding"][1:]
    if "levels" in one:
        names, curves = one["levels"], one["curves"]
        if len(curves) == 1:
            (means,) = curves.values()
            return svg.bar_chart(
                _from_average(means, one["shares"]),
                names,
                title=title,
                x_label=one["column"],
                y_label=f"{label}, against the average",
                horizontal=len(names) > 5 or max(map(len, names)) > 10,
                value_format=lambda v: ("+" if v > 0 else "") + rough(v),
            )
        head = [one["column"], *curves]
        rows = [
            [level, *(_share(curve[i]) for curve in curves.values())]
            for i, level in enumerate(names)
        ]
        return page.table(head, rows, title=title)
    return svg.line_chart(
        {name or "mean": (one["places"], curve) for name, curve in one["curves"].items()},
        title=title,
        x_label=one["column"],
        y_label=label,
        shares=one["shares"],
        covers=ends,
        times=one["kind"] == "date",
    )


def _share(value: float) -> page.Cell:
    return page.Cell(f"{value:.0%}".replace("%", " %"), tint=(0, 0.5 * value))


def _from_average(means: list[float], shares: list[float]) -> list[float]:
    """How far each level is from the mean over rows."""
    total = sum(shares) or 1.0
    average = sum(m * s for m, s in zip(means, shares, strict=True)) / total
    return [mean - average for mean in means]


def columns(model: TableModel) -> Section:
    """How each column of the table was read and used."""
    listed = model.encoding.listing()
    rows: list[list[object]] = []
    for one in listed[:_TABLE_COLUMNS]:
        kind, use = (one["kind"], one["used_as"]) if one["used_as"] else ("left out", one["why"])
        use += f" ({one['why']})" if one["used_as"] and one["why"] else ""
        values = one["values"].replace("-", "−") if kind == "number" else one["values"]
        rows.append([one["name"], kind, use, values, f"{one['missing']:,}"])
    text = "How the columns of the table were understood and what the network sees of them."
    if len(listed) > _TABLE_COLUMNS:
        text += f" The first {_TABLE_COLUMNS} of {len(listed)}."
    figure = page.table(["column", "kind", "used as", "values", "missing"], rows, names=3)
    return Section("The table", text, [figure], wide=True)
