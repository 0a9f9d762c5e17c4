"""From a fitted model and its history to the sections of a page."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded.likelihoods import ClassPrediction
from unbounded.predictive import predict
from unbounded.report import svg
from unbounded.report.axes import number
from unbounded.report.page import Section
from unbounded.report.terminal import shown_range

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.training import History

_GRID = 240  # pixels along each side of a decision boundary
_MOST_BARS = 60


def depth_posterior(model: "UDN") -> Section:
    """q(ℓ) as bars, the mode in the second colour."""
    first, _ = model.support()
    probs = model.depth_log_probs().detach().exp().tolist()
    return posterior_section(probs, first)


def posterior_section(probs: Sequence[float], first_depth: int = 1) -> Section:
    """q(ℓ) as bars, from the probabilities q(first_depth), q(first_depth + 1), … alone."""
    mean = sum(p * (first_depth + index) for index, p in enumerate(probs))
    mode = max(range(len(probs)), key=lambda index: probs[index])
    low, high = (first_depth + index for index in _central(probs, 0.9))
    middle = f"at depth {low}" if low == high else f"between depths {low} and {high}"
    start, stop = shown_range(probs, _MOST_BARS)
    figure = svg.bar_chart(
        probs[start:stop],
        [str(first_depth + index) for index in range(start, stop)],
        title="Posterior over depth, q(ℓ)",
        x_label="depth ℓ",
        y_label="probability",
        highlight=mode - start,
        value_format=lambda p: f"{p:.2f}",
    )
    text = (
        f"How deep the network should be, given the data. The most probable depth is "
        f"{first_depth + mode}, the expected one {mean:{'.2f' if mean < 100 else ',.0f'}}; "
        f"the middle 90 % of the mass lies {middle}. Predictions average over all of them."
    )
    if stop - start < len(probs):
        mass = 1 - sum(probs[start:stop]) / sum(probs)
        text += (
            f" Of {len(probs)} depths those with next to no mass are not drawn "
            f"(together {number(mass, 2)})."
        )
    return Section("How deep?", text, [figure])


def depth_over_time(history: "History", height: float = 224.0) -> Section:
    """E[ℓ] and m over the epochs, with the births of layers marked; of a `height` of 440 wide."""
    names = {"E[ℓ], expected depth": "depth_mean", "m, the last depth with mass": "max_depth"}
    births: dict[int, list[int]] = {}
    for row in history.births:
        births.setdefault(int(row["epoch"]), []).append(int(row["depth"]))
    figure = svg.line_chart(
        _series(history, names),
        title="Depth during training",
        x_label="epoch",
        y_label="depth",
        marks=[(float(epoch), _range(*depths)) for epoch, depths in sorted(births.items())],
        mark_name="birth of a layer",
        steps=("m, the last depth with mass",),
        height=height,
    )
    born = sum(len(depths) for depths in births.values())
    text = (
        "Wherever training moves q(ℓ), its support follows: a layer that is missing is created "
        "in that very step."
    )
    if births:
        text += (
            f" {'One layer was' if born == 1 else f'{born} layers were'} born on the way; "
            "each dashed line is a birth, the number above it the depth of the new layer."
        )
    else:
        text += " No layer was born in this run: the ones it began with were enough."
    if "depth_settled" in history.columns:
        since = history.settled_epoch
        text += "\n\nHeld-out rows decide how deep is deep enough. "
        text += (
            "q(ℓ) had not come to rest when training ended: a longer one may find another depth."
            if since is None
            else f"q(ℓ) has been at rest since epoch {since:,}."
        )
    if len(history) >= 20:
        last, before = (history["depth_mean"][-1 - back] for back in (0, len(history) // 10))
        moved = f"{last - before:+.2f}".replace("-", "−")
        text += f"\n\nOver the last tenth of the epochs E[ℓ] moved by {moved}, to {last:.2f}."
    return Section("How depth was found", text, [figure], wide=True)


def elbo_terms(history: "History") -> Section:
    """The terms of the ELBO as costs, on a logarithmic axis where all are positive."""
    names = {
        "misfit, −E[log p(y | x, ℓ)]": "-expected_log_lik",
        "weights, KL": "weight_kl",
        "depth, KL": "depth_kl",
        "−ELBO, their sum": "-elbo",
    }
    series = _series(history, names)
    # A density can be above one: then the misfit is negative and the axis linear.
    positive = (v > 0 for _, values in series.values() for v in values if math.isfinite(v))
    figure = svg.line_chart(
        series,
        title="What the ELBO is made of",
        x_label="epoch",
        y_label="nats, lower is better",
        log_y=len(history) > 0 and all(positive),
    )
    text = (
        "Training maximises the objective of the paper: it trades the misfit to the data against "
        "what the weights and the depth cost under their priors. All in nats, for the whole "
        "training set."
    )
    if history.births:
        text += " A new layer knows nothing at first: peaks often mark a birth."
    return Section("What was optimised", text, [figure])


def score_over_time(history: "History", score_name: str) -> Section:
    """The scores of the sets that were watched during training, epoch by epoch."""
    end = f"_{score_name}"
    names = {_SETS.get(c.removesuffix(end), c): c for c in history.columns if c.endswith(end)}
    label = _label(score_name)
    title, series = f"{_capital(label)} during training", _series(history, names)
    figure = svg.line_chart(series, title=title, x_label="epoch", y_label=label)
    return Section(
        f"{_capital(label)} over time",
        "After every epoch the mixture over depths is scored on rows that it was not trained on. "
        "The weights of the best epoch are the ones that were kept.",
        [figure],
    )


def score_by_depth(
    depths: Sequence[int],
    scores: Sequence[float],
    mixture_score: float,
    score_name: str,
    depth_probs: Sequence[float],
) -> Section:
    """The score of each depth alone, against that of the mixture.

    Args:
        depths: ℓ.
        scores: the score if only depth ℓ spoke, in the same order.
        mixture_score: the score of Σ_ℓ q(ℓ) p(y; Ω_ℓ(x)).
        score_name: such as "accuracy".
        depth_probs: q(ℓ), the area of each dot.
    """
    label = _label(score_name)
    tips = [
        f"depth {d}: {label} {number(s, 4)}, q(ℓ) {number(p, 3)}"
        for d, s, p in zip(depths, scores, depth_probs, strict=True)
    ]
    figure = svg.scatter_chart(
        {"a depth alone": ([float(d) for d in depths], scores)},
        title=f"{_capital(label)} by depth",
        x_label="depth ℓ",
        y_label=label,
        sizes={"a depth alone": depth_probs},
        tips={"a depth alone": tips},
        reference=(mixture_score, "the mixture over depths"),
        integer_x=True,
    )
    text = (
        f"Each dot is the {label} of one depth on its own, its area the probability q(ℓ) which "
        "that depth has in the mixture. Depths with little mass were hardly trained."
    )
    return Section(f"{_capital(label)} at each depth", text, [figure])


def decision_boundary(
    model: "UDN", x: Tensor, y: Tensor, names: Sequence[str] = ("", ""), classes: Sequence[str] = ()
) -> Section:
    """Class probabilities of the mixture over the plane of two inputs, with points over it.

    The points are x, `(rows, 2)`, with classes y, `(rows,)`; `names` are those of the inputs.
    """
    if x.dim() != 2 or x.shape[1] != 2:
        raise ValueError(f"a decision boundary needs two inputs, got {tuple(x.shape)}")
    points = x.detach().double().cpu()
    low, high = points.min(0).values, points.max(0).values
    margin = (high - low).clamp_min(1e-6) * 0.08
    low, high = low - margin, high + margin
    xs, ys = (torch.linspace(float(low[i]), float(high[i]), _GRID) for i in (0, 1))
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), -1)  # (y, x, 2)
    field, drawn = predict(model, grid.reshape(-1, 2), batch_size=16384), predict(model, x)
    if not isinstance(field, ClassPrediction) or not isinstance(drawn, ClassPrediction):
        raise ValueError(
            f"a decision boundary needs a likelihood of classes, got {model.likelihood}"
        )
    labels = y.detach().cpu()
    wrong = drawn.classes.cpu() != labels

    def drawn_map(values: Tensor, title: str, names_: Sequence[str], **options: Any) -> str:
        return svg.heatmap(
            values.reshape(_GRID, _GRID, *values.shape[1:]).double().cpu().numpy(),
            (float(low[0]), float(high[0]), float(low[1]), float(high[1])),
            (points[:, 0].tolist(), points[:, 1].tolist(), labels.tolist()),
            title=title,
            x_label=names[0] or "first input",
            y_label=names[1] or "second input",
            names=names_,
            **options,
        )

    boundary = drawn_map(field.probs, "Decision boundary", classes, wrong=wrong.tolist())
    disagreement = drawn_map(depth_information(field), "Where depths disagree", ["nats"])
    text = (
        "Where the network sees which class, and how surely: pale means undecided. The points "
        f"are {len(labels):,} rows that it was not trained on.\n\n"
        "The second picture is the uncertainty that comes from depth alone: how much knowing the "
        "right depth would tell about the class. It is nothing where all depths say the same."
    )
    return Section("What it learnt", text, [boundary, disagreement], wide=True)


def depth_information(prediction: ClassPrediction) -> Tensor:
    """I(y; ℓ | x) = H[Σ_ℓ q(ℓ) p(y; Ω_ℓ(x))] − Σ_ℓ q(ℓ) H[p(y; Ω_ℓ(x))] in nats: `(batch,)`."""
    by_depth = prediction.log_probs_by_depth.double()  # (depth, batch, class)
    q = prediction.depth_log_probs.double().exp()
    inner = -(by_depth.exp() * by_depth).sum(-1)
    mixture = prediction.log_probs.double()
    outer = -(mixture.exp() * mixture).sum(-1)
    return (outer - q @ inner).clamp_min(0.0)


def _series(history: "History", columns: Mapping[str, str]) -> dict[str, svg.Series]:
    """Columns over the epochs by their names; a minus before a column turns its sign."""
    if not len(history):
        return {}
    epochs, series = history["epoch"], {}
    for name, column in columns.items():
        values = history[column.removeprefix("-")]
        series[name] = (epochs, [-v for v in values] if column[0] == "-" else values)
    return series


_SETS = {"val": "validation", "test": "test", "train": "training"}


def _label(score_name: str) -> str:
    """A score's name within a sentence."""
    words = score_name.replace("_", " ")
    return words.upper() if words in ("rmse", "mae", "nll", "crps") else words


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _central(probs: Sequence[float], mass: float) -> tuple[int, int]:
    """The indices between which the middle `mass` of a distribution lies."""
    total, tail = sum(probs), (1 - mass) / 2
    seen, low, high = 0.0, 0, len(probs) - 1
    for index, p in enumerate(probs):
        before, seen = seen, seen + p / total
        if before <= tail < seen:
            low = index
        if before < 1 - tail <= seen:
            high = index
    return low, high


def _range(*depths: int) -> str:
    low, high = min(depths), max(depths)
    return str(low) if low == high else f"{low}–{high}"
