"""The HTML pages about a model and about its scores on a table."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded import metrics
from unbounded.report import page, sections, svg
from unbounded.report.axes import number, rough
from unbounded.report.page import Section
from unbounded.tables import column_sections
from unbounded.tables.findings import findings, uncertainty_split, verdict
from unbounded.tables.model import TableModel
from unbounded.tables.scores import CLASS_SCORES, NUMBER_SCORES, score_rows
from unbounded.tables.text import count_of

if TYPE_CHECKING:
    from unbounded.training import History

_MATRIX, _SMALL_MATRIX = 30, 5  # classes up to which there is a matrix, and half a page for it


def model_page(
    model: TableModel, found: dict[str, Any] | None = None, table: str | None = None
) -> str:
    """Everything about a model.

    Args:
        model: the model.
        found: what `TableModel.summarize` says of some rows, with "importance"; by default what
            `fit` saw on the rows that it held out, if there were any.
        table: the name of the file that these rows are from.
    """
    estimator, info = model.estimator, model.info
    where = f"of {table}" if table else "that were held out"
    references = {} if table else info.get("references", {})
    found = found or info.get("held_out")
    # The history of the weights that the model has.
    history = estimator.refit_history_ or estimator.history_
    parts = [_in_short(model, found if table else None)]
    if found:
        parts.append(_scores(model, found, references, where))
    first = int(estimator.depths_[0])
    probs = estimator.depth_probs_[first - 1 :].tolist()  # of all networks
    parts.append(sections.posterior_section(probs, first))
    if found:
        parts += [
            _by_depth(found),
            *([column_sections.importance(model, found)] if found.get("importance") else []),
            *([column_sections.effects(model, found)] if found.get("effects") else []),
            _calibration(found),
            _confusion(model, found) if "confusion" in found else _predicted(found),
            _uncertainty(found),
        ]
    if len(history):
        parts.append(_training(model, history))
    parts.append(column_sections.columns(model))
    return page.render(
        f"{model.target.name}, predicted from {count_of(len(model.encoding.used), 'column')}",
        _subtitle(model),
        _facts(model, found),
        parts,
    )


def evaluation_page(model: TableModel, found: dict[str, Any], table: str) -> str:
    """Scores and calibration on one table."""
    where = f"of {table}"
    return page.render(
        f"{model.target.name} on {table}",
        f"How a network of inferred depth does on {count_of(found['rows'], 'row')} {where}.",
        _facts(model, found),
        [
            _scores(model, found, {}, where),
            _calibration(found),
            _by_depth(found),
            _uncertainty(found),
            _confusion(model, found) if "confusion" in found else _predicted(found),
        ],
    )


def _subtitle(model: TableModel) -> str:
    info, target = model.info, model.target
    classes = f"one of {len(target.classes)} classes"
    what = classes if target.is_classes else "a number, with its uncertainty,"
    return (
        f"A network learnt {what} from {info.get('rows', 0):,} rows of "
        f"{info.get('table', 'a table')}. Nobody chose its depth: a posterior q(ℓ) over the number "
        "of layers was inferred together with the weights, and predictions average over it."
    )


def _facts(model: TableModel, found: dict[str, Any] | None) -> list[tuple[str, str]]:
    estimator = model.estimator
    facts = []
    if found:
        scores, rows = found["scores"], found["rows"]
        if model.target.is_classes:
            low, high = metrics.wilson(round(scores["accuracy"] * rows), rows)
            spread = f" (± {50 * float(high - low):.1f})"
            facts.append((f"Accuracy{spread}", _percent(scores["accuracy"])))
            facts.append(("Log score, nats", number(scores["log_score"], 3)))
        else:
            error = found.get("score_error", math.nan)
            spread = f" (± {rough(1.96 * error)})" if math.isfinite(error) else ""
            facts.append((f"RMSE{spread}", number(scores["rmse"], 4)))
            facts.append(("In the 90 % interval", _percent(scores["coverage_90"])))
    count = len(estimator.members_)
    networks = f", {count} networks" if count > 1 else ""
    size = sum(p.numel() for member in estimator.members_ for p in member.parameters())
    return [
        *facts,
        ("Expected depth E[ℓ]", f"{estimator.depth_mean_:.2f}"),
        ("Last depth with mass, m", str(estimator.max_depth_)),
        ("Best epoch", f"{estimator.best_epoch_:,} of {estimator.n_iter_:,}"),
        (f"Parameters{networks}", f"{size:,}"),
    ]


def _in_short(model: TableModel, found: dict[str, Any] | None) -> Section:
    """The findings as sentences: what to know, and what to do next."""
    points = list(findings(model, found).values())
    effects = (found or model.info.get("held_out", {})).get("effects") or []
    points[-1:-1] = [one["finding"] for one in effects[:2]]
    points += model.info.get("notes", [])
    points = [f"{point[:1].upper()}{point[1:]}." for point in points]
    return Section("In short", points=points, full=True)


_ABOUT = {
    "accuracy": "rows whose class was right, higher is better",
    "log_score": "mean log probability of the class that came, in nats, higher is better",
    "brier": "squared error of the probabilities, lower is better",
    "ece": "expected calibration error, lower is better",
    "aurc": "area under the risk–coverage curve, lower is better",
    "roc_auc": "area under the ROC curve, higher is better",
    "f1": "mean of precision and recall (harmonic), higher is better",
    "precision": "right among those taken for a class, higher is better",
    "recall": "found of those in a class, higher is better",
    "rmse": "root mean squared error, lower is better",
    "mae": "mean absolute error, lower is better",
    "r2": "share of the variance that is explained, higher is better",
    "nll": "negative log-likelihood in nats, lower is better",
    "crps": "continuous ranked probability score, lower is better",
}


def _scores(
    model: TableModel, found: dict[str, Any], references: dict[str, Any], where: str
) -> Section:
    classes = model.target.is_classes
    names = CLASS_SCORES if classes else NUMBER_SCORES
    _, *models = score_rows(found["scores"], references, classes)
    values = [found["scores"], *references.values()]
    rows: list[list[object]] = []
    for index, (name, heading) in enumerate(names.items(), 1):
        best = _best([scores.get(name, math.nan) for scores in values], name)
        cells = [
            page.Cell(row[index].replace("-", "−"), strong=i in best and len(models) > 1)
            for i, row in enumerate(models)
        ]
        about = _ABOUT.get(name, "of the targets in the central interval")
        rows.append([page.Cell(heading, about), *cells])
    text = f"On {count_of(found['rows'], 'row')} {where}."
    if classes:
        text += (
            " ROC-AUC, F1, precision and recall are means over the classes, each with the same "
            "weight (macro); ROC-AUC is that of each class against the rest."
        )
    else:
        text += " RMSE, MAE and CRPS are in the units of the target."
    if references:
        won = verdict(found["scores"], references, classes, found["rows"])
        text = f"{won[:1].upper()}{won[1:]}.\n\n{text}" if won else text
        text += (
            "\n\nThe linear model and scikit-learn's HistGradientBoosting saw the same rows in "
            "the same encoding, with their default settings. The best of each line stands out."
        )
    figure = page.table(["score", *(row[0] for row in models)], rows)
    return Section("How good?", text, [figure], wide=True)


def _best(values: list[float], name: str) -> set[int]:
    """Which of the models are best; an interval should hold what it says."""
    if name.startswith("coverage"):
        values = [-abs(value - int(name.split("_")[1]) / 100) for value in values]
    elif name in ("brier", "ece", "aurc", "rmse", "mae", "nll", "crps"):
        values = [-value for value in values]
    there = [value for value in values if math.isfinite(value)]
    return {i for i, value in enumerate(values) if there and value == max(there)}


def _training(model: TableModel, history: "History") -> Section:
    """The validation curve, depth and the terms of the objective, epoch by epoch."""
    first = model.estimator.history_
    depth, terms = sections.depth_over_time(history, 264.0), sections.elbo_terms(history)
    figures = [*_validation(model, first), *depth.figures, *terms.figures]
    text = f"{depth.text}\n\n{terms.text}"
    if len(figures) > 2:
        text = (
            "After every epoch the network is scored on a validation share of the training rows; "
            f"the weights of the best epoch are kept.\n\n{text}"
        )
    return Section("How training went", text, figures, full=True, across=len(figures))


def _validation(model: TableModel, history: "History") -> list[str]:
    """The score that chose the epoch; for classes beside the same on the rows learnt from."""
    estimator: Any = model.estimator
    classes = model.target.is_classes
    name = "val_log_score" if classes else "val_rmse"
    if name not in history.columns:
        return []
    epochs, values = history["epoch"], history[name]
    series = {"validation rows": (epochs, values)}
    if classes:
        rows = model.info.get("rows", 0) * (1 - estimator.validation_fraction)
        learnt = [v / rows if rows else math.nan for v in history["expected_log_lik"]]
        series["training rows"] = (epochs, learnt)
    else:
        scale = float(np.ravel(estimator.target_scaling_.scale)[0])
        series = {"validation rows": (epochs, [value * scale for value in values])}
    figure = svg.line_chart(
        series,
        title=f"{'Log score' if classes else 'RMSE'} on validation rows",
        x_label="epoch",
        y_label="nats a row, higher is better" if classes else "RMSE, lower is better",
        marks=[float(estimator.best_epoch_)],
        mark_name="the epoch that is kept",
    )
    return [figure]


def _by_depth(found: dict[str, Any]) -> Section:
    name = "accuracy" if found["task"] == "classification" else "rmse"
    return sections.score_by_depth(
        found["depths"], found["by_depth"], found["scores"][name], name, found["depth_probs"]
    )


def _calibration(found: dict[str, Any]) -> Section:
    curve = found["calibration"]
    classes = found["task"] == "classification"
    if classes:
        figure = svg.reliability_chart(
            curve["confidence"], curve["accuracy"], curve["count"], title="Reliability"
        )
        text = (
            "Of the rows that were predicted with a given confidence, how many were right. On the "
            "dashed line confidence can be taken at its word; below it the model "
            "is too sure of itself, above it too modest. The whiskers are 95 % intervals: what so "
            f"few rows leave open. ECE {found['scores']['ece']:.3f}."
        )
    else:
        rows, held = found["rows"], _percent(found["scores"]["coverage_90"])
        hits = [share * rows for share in curve["coverage"]]
        low, high = metrics.wilson(hits, [rows] * len(hits))
        figure = svg.scatter_chart(
            {"intervals": (curve["probability"], curve["coverage"])},
            title="Reliability",
            x_label="probability of the interval",
            y_label="share of targets inside",
            bounds={"intervals": list(zip(low.tolist(), high.tolist(), strict=True))},
            diagonal=True,
        )
        text = (
            "How many targets lie in central intervals of a given probability. On the "
            "dashed line the intervals hold what they promise; below it they are too narrow, "
            f"above it too wide. The 90 % intervals held {held}. "
            f"The whiskers are 95 % intervals: what {rows:,} rows leave open."
        )
    return Section("Can it be trusted?", text, [figure])


def _uncertainty(found: dict[str, Any]) -> Section:
    split = found["uncertainty"]
    classes = found["task"] == "classification"
    count = len(split["total"])
    place = [100 * (i + 0.5) / count for i in range(count)]
    units = "entropy, nats" if classes else "standard deviation"
    figure = svg.line_chart(
        {name: (place, split[name]) for name in ("total", "noise", "depth")},
        title="Uncertainty of each row",
        x_label="rows from sure to unsure, %",
        y_label=units,
    )
    bounds = split.get("by_fifth_bounds")
    errors = svg.bar_chart(
        split["by_fifth"],
        _FIFTHS[: len(split["by_fifth"])],
        title="Errors where it is sure and where not",
        x_label="fifths of the rows, from sure to unsure",
        y_label="share wrong" if classes else "mean absolute error",
        bounds=None if bounds is None else [(low, high) for low, high in bounds],
        value_format=_percent if classes else number,
    )
    text = (
        "What the model does not know about a row has two parts: noise, which every depth sees, "
        "and depth, by which the depths disagree."
    )
    told = uncertainty_split(found)
    text += f" {told[:1].upper()}{told[1:]}." if told else ""
    text += " Entropies add up." if classes else " Variances add up."
    text += (
        "\n\nIf the uncertainty means something, errors are rarer where it is small. The whiskers "
        "are 95 % intervals of the means."
    )
    return Section("How unsure is it, and why?", text, [figure, errors], wide=True)


_FIFTHS = ["1st", "2nd", "3rd", "4th", "5th"]


def _confusion(model: TableModel, found: dict[str, Any]) -> Section:
    classes = model.target.classes
    matrix = found["confusion"]
    title = "What is taken for what?"
    if len(classes) > _MATRIX:
        pairs = [
            (count, true, taken)
            for true, row in zip(classes, matrix, strict=True)
            for taken, count in zip(classes, row, strict=True)
            if taken != true and count
        ]
        body: list[list[object]] = [[t, p, n] for n, t, p in sorted(pairs, reverse=True)[:20]]
        figure = page.table(["true", "taken for", "rows"], body, names=2)
        return Section(title, "The most frequent confusions.", [figure], full=True)
    body = []
    for true, (name, row) in enumerate(zip(classes, matrix, strict=True)):
        cells = [_taken(count, sum(row), true == taken) for taken, count in enumerate(row)]
        body.append([name, *cells])
    tables = [page.table(["true \\ predicted", *classes], body, title="Confusion matrix")]
    text = (
        "Rows of each class by what they were taken for, with their share of the class: blue where "
        "that is right, orange where it is wrong."
    )
    small = len(classes) <= _SMALL_MATRIX
    if small:
        text += " Intervals are 95 % ones: a class with few rows says little."
        tables.append(_by_class(classes, matrix))
    return Section(title, text, tables, full=not small)


def _taken(count: int, rows: int, right: bool) -> page.Cell:
    """A cell of the confusion matrix, in the first colour if right and in the second if not."""
    share = count / rows if rows else 0.0
    tint = (0 if right else 1, 0.6 * share) if count else None
    return page.Cell(f"{count:,}", _percent(share, 0) if rows else "", tint=tint)


def _by_class(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Precision and recall of each class, with what its rows leave open."""
    body: list[list[object]] = []
    for index, name in enumerate(classes):
        hits, own = matrix[index][index], sum(matrix[index])
        cells = [_rate(hits, sum(row[index] for row in matrix)), _rate(hits, own)]
        body.append([name, f"{own:,}", *cells])
    return page.table(["class", "rows", "precision", "recall"], body, title="Class by class")


def _rate(hits: int, rows: int) -> page.Cell:
    if not rows:
        return page.Cell("–")
    low, high = metrics.wilson(hits, rows)
    ends = " to ".join(_percent(float(end), 0) for end in (low, high))
    return page.Cell(_percent(hits / rows), ends)


def _percent(share: float, decimals: int = 1) -> str:
    return f"{100 * share:.{decimals}f} %" if math.isfinite(share) else "–"


def _predicted(found: dict[str, Any]) -> Section:
    values = found["predicted"]
    figure = svg.scatter_chart(
        {"rows": (values["mean"], values["y"])},
        title="Predicted and true",
        x_label="predicted mean",
        y_label="true value",
        diagonal=True,
    )
    return Section(
        "How close?", f"{len(values['y'])} rows; on the diagonal, the mean was right.", [figure]
    )
