"""The HTML pages about a model and about its scores on a table."""

from collections.abc import Sequence
from typing import Any

from unbounded.report import page, sections, svg
from unbounded.report.page import Section
from unbounded.tables.model import TableModel
from unbounded.tables.scores import score_rows
from unbounded.tables.text import count_of

_BARS = 25  # columns whose importance is drawn
_TABLE_COLUMNS = 200
_MATRIX = 30


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
    if found:
        parts = [
            _scores(model, found, references, where),
            sections.depth_posterior(estimator.model_),
            _by_depth(found),
            sections.depth_over_time(history),
            _calibration(found),
            *([_importance(model, found)] if found.get("importance") else []),
            _uncertainty(found),
            _confusion(model, found) if "confusion" in found else _predicted(found),
        ]
    else:
        parts = [sections.depth_posterior(estimator.model_), sections.depth_over_time(history)]
    parts += [sections.elbo_terms(history)] if len(history) else []
    parts.append(_columns(model))
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
        scores = found["scores"]
        if model.target.is_classes:
            facts.append(("Accuracy", f"{scores['accuracy']:.1%}"))
            facts.append(("Log score, nats", f"{scores['log_score']:.3f}"))
        else:
            facts.append(("RMSE", f"{scores['rmse']:.4g}"))
            facts.append(("In the 90 % interval", f"{scores['coverage_90']:.1%}"))
    return [
        *facts,
        ("Expected depth E[ℓ]", f"{estimator.depth_mean_:.2f}"),
        ("Last depth with mass, m", str(estimator.max_depth_)),
        ("Best epoch", f"{estimator.best_epoch_:,} of {estimator.n_iter_:,}"),
        ("Parameters", f"{sum(p.numel() for p in estimator.model_.parameters()):,}"),
    ]


def _scores(
    model: TableModel, found: dict[str, Any], references: dict[str, Any], where: str
) -> Section:
    (_, *headings), *body = score_rows(found["scores"], references, model.target.is_classes)
    if model.target.is_classes:
        text = (
            f"On {count_of(found['rows'], 'row')} {where}. Log score: "
            "mean log probability of the class that came, higher is better. Brier score, expected "
            "calibration error (ECE) and area under the risk–coverage curve (AURC): lower is "
            "better."
        )
    else:
        text = (
            f"On {count_of(found['rows'], 'row')} {where}. RMSE, MAE and "
            "CRPS are in the units of the target, NLL is in nats; lower is better, and higher for "
            "R². The last three: how many targets the central intervals held."
        )
    if references:
        text += (
            "\n\nThe linear model and scikit-learn's HistGradientBoosting saw the same rows in "
            "the same encoding, with their default settings."
        )
    return Section("How good?", text, [page.table(["model", *headings], body)], wide=True)


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
            f"is too sure of itself, above it too modest. ECE {found['scores']['ece']:.3f}."
        )
    else:
        figure = svg.scatter_chart(
            {"intervals": (curve["probability"], curve["coverage"])},
            title="Reliability",
            x_label="probability of the interval",
            y_label="share of targets inside",
            diagonal=True,
        )
        inside = found["scores"]["coverage_90"]
        text = (
            "How many targets lie in central intervals of a given probability. On the "
            "dashed line the intervals hold what they promise; below it they are too narrow, "
            f"above it too wide. The 90 % intervals held {inside:.1%}."
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
    errors = svg.bar_chart(
        split["by_fifth"],
        _FIFTHS[: len(split["by_fifth"])],
        title="Errors where it is sure and where not",
        x_label="fifths of the rows, from sure to unsure",
        y_label="share wrong" if classes else "mean absolute error",
        value_format=(lambda v: f"{v:.1%}") if classes else (lambda v: f"{v:.3g}"),
    )
    text = (
        "What the model does not know about a row has two parts: noise, which every depth sees, "
        "and depth, by which the depths disagree. On average they are "
        f"{split['noise_mean']:.3g} and {split['depth_mean']:.3g} ({units})."
    )
    text += " Entropies add up." if classes else " Their squares add up to the square of the total."
    text += "\n\nIf the uncertainty means something, errors are rarer where it is small."
    return Section("How unsure is it, and why?", text, [figure, errors], wide=True)


_FIFTHS = ["1st", "2nd", "3rd", "4th", "5th"]


def _importance(model: TableModel, found: dict[str, Any]) -> Section:
    rows: Sequence[dict[str, Any]] = found["importance"]
    shown = rows[:_BARS]
    loss = "log score lost, nats" if found["task"] == "classification" else "RMSE gained"
    figure = svg.bar_chart(
        [row["loss"] for row in shown],
        [row["column"] for row in shown],
        title="Permutation importance",
        x_label="column",
        y_label=loss,
        errors=[row["sd"] for row in shown],
        horizontal=True,
        value_format=lambda v: f"{v:.3g}",
    )
    text = (
        "How much worse the predictions become when the values of one column are shuffled among "
        "the rows (up to 1,000 of them); the whiskers are the standard deviation over shuffles. "
        "Columns that say the same share their importance."
    )
    if len(rows) < len(model.encoding.used):
        text += (
            f" Of {len(model.encoding.used):,} columns the {len(rows)} were shuffled to which the "
            "predictions react most (by their gradient)."
        )
    if len(rows) > _BARS:
        text += f" The {len(rows) - _BARS} least important of {len(rows)} are not drawn."
    return Section("Which columns matter?", text, [figure])


def _confusion(model: TableModel, found: dict[str, Any]) -> Section:
    classes = model.target.classes
    matrix = found["confusion"]
    if len(classes) > _MATRIX:
        pairs = [
            (count, true, taken)
            for true, row in zip(classes, matrix, strict=True)
            for taken, count in zip(classes, row, strict=True)
            if taken != true and count
        ]
        body: list[list[object]] = [[t, p, n] for n, t, p in sorted(pairs, reverse=True)[:20]]
        figure = page.table(["true", "taken for", "rows"], body, names=2)
        return Section("What is taken for what?", "The most frequent confusions.", [figure])
    body = [[name, *row] for name, row in zip(classes, matrix, strict=True)]
    figure = page.table(["true \\ predicted", *classes], body)
    text = "Rows of each class by what they were taken for."
    return Section("What is taken for what?", text, [figure])


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


def _columns(model: TableModel) -> Section:
    listed = model.encoding.listing()
    rows: list[list[object]] = []
    for one in listed[:_TABLE_COLUMNS]:
        kind, use = (one["kind"], one["used_as"]) if one["used_as"] else ("left out", one["why"])
        use += f" ({one['why']})" if one["used_as"] and one["why"] else ""
        rows.append([one["name"], kind, use, one["values"], f"{one['missing']:,}"])
    text = "How the columns of the table were understood and what the network sees of them."
    if len(listed) > _TABLE_COLUMNS:
        text += f" The first {_TABLE_COLUMNS} of {len(listed)}."
    figure = page.table(["column", "kind", "used as", "values", "missing"], rows, names=3)
    return Section("The table", text, [figure], wide=True)
