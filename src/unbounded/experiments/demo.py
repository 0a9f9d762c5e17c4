"""A spiral, an unbounded-depth network, a page: `unbounded demo`.

Fits a UDN to the paper's spiral D(ω), with its width and batches, by the library's own recipe: the
preset "settled", whose depth follows held-out rows. Layers are born while q(ℓ) reaches for them;
at the end q(ℓ) is narrow, and the page shows when it came to rest. The weights' rate falls along a
cosine. `--preset paper` has the paper's family, layers and rule for λ instead.
"""

import itertools
import math
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from unbounded.data import spiral
from unbounded.devices import one_thread
from unbounded.likelihoods import Categorical, ClassPrediction
from unbounded.model import UDN
from unbounded.predictive import predict
from unbounded.report import page, sections
from unbounded.report.terminal import depth_bars, show
from unbounded.tables.text import count_of
from unbounded.training import FitResult, fit, preset
from unbounded.training.presets import Preset, half_cosine

EPOCHS = 1500
WIDTH = 32
RATE = 0.005
PRESET = "settled"
_ROWS = 1024


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    path: Path  # of the page
    accuracy: float  # of the mixture over depths, on the test set
    accuracy_by_depth: list[float]  # of each depth alone
    depth_probs: list[float]  # q(1), q(2), …
    depth_mean: float
    max_depth: int
    fit: FitResult
    model: UDN


def run(
    out: Path,
    *,
    omega: float = 10.0,
    seed: int = 0,
    epochs: int = EPOCHS,
    recipe: str = PRESET,
    progress: bool = True,
) -> DemoResult:
    """Fit a spiral, print a summary, and write a page.

    Args:
        out: the page to write; replaced if it is there.
        omega: rotation speed of the spiral.
        seed: of data and weights.
        epochs: how long to train. Ctrl-C ends it earlier and still writes the page.
        recipe: the name of a preset.
        progress: show a progress bar.

    Raises:
        OSError: if the page cannot be written there, before any training.
        ValueError: on an ω that is not finite, a negative seed, or fewer than one epoch.
    """
    out = page.check_target(out)
    with one_thread():
        return _run(out, omega, seed, epochs, recipe, progress)


def _beginning(model: UDN, chosen: Preset) -> str:
    """Where the depth begins, in words."""
    if chosen.rule is None:
        layers, mean = model.network.num_layers, model.depth.mean()
        return f"It starts with {layers} layers and E[ℓ] = {mean:.2f}"
    place, spread = model.layers.reference
    return f"It looks at depths around {place:g} first, give or take {spread:g}"


def _run(
    out: Path, omega: float, seed: int, epochs: int, recipe: str, progress: bool
) -> DemoResult:
    if not math.isfinite(omega):
        raise ValueError(f"omega must be a finite number, got {omega}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    train, validation, test = (
        spiral(omega, _ROWS, part=part, seed=seed) for part in ("train", "validation", "test")
    )
    chosen = preset(recipe)
    model = UDN(
        chosen.layers(2, WIDTH, 2), Categorical(2), chosen.start(is_classes=True), seed=seed
    )
    show(
        f"Fitting an unbounded-depth network to {_ROWS:,} points of two spiral arms "
        f"(ω = {omega:g}).\n{_beginning(model, chosen)}; {count_of(epochs, 'epoch')}, "
        "Ctrl-C ends it early."
    )
    result = fit(
        model,
        *train,
        validation=validation,
        epochs=epochs,
        lr=RATE,
        schedule=partial(_cosine, epochs),
        depth_schedule=None if chosen.rule else lambda epoch: 1.0,
        progress=progress,
        **chosen.fitting(model.depth, validates=True, is_classes=True),
    )
    x, y = test
    prediction = predict(model, x)
    assert isinstance(prediction, ClassPrediction)
    first, last = model.support()
    found = DemoResult(
        path=out,
        accuracy=float((prediction.classes == y).double().mean()),
        accuracy_by_depth=(prediction.classes_by_depth == y).double().mean(1).tolist(),
        depth_probs=model.depth_log_probs().detach().exp().tolist(),
        depth_mean=model.depth.mean(),
        max_depth=last,
        fit=result,
        model=model,
    )
    page.write(out, _page(found, omega, test))
    show(_summary(found, first))
    return found


def _cosine(epochs: int, epoch: int) -> float:
    """From the full rate to a twentieth of it along half a cosine."""
    return half_cosine(min(1.0, epoch / epochs), 0.05)


def _summary(found: DemoResult, first_depth: int) -> str:
    """What the terminal says at the end."""
    result = found.fit
    ends = {"interrupted": " (ended by Ctrl-C)", "memory": " (ended by a lack of memory)"}
    end = ends.get(result.stopped, "")
    by_depth = "\n".join(
        f"{first_depth + index:>5}  {accuracy:>8.1%}"
        for index, accuracy in enumerate(found.accuracy_by_depth)
    )
    return (
        f"\nPosterior over depth after {count_of(len(result.history), 'epoch')} in "
        f"{result.seconds:.1f} s{end}, weights of epoch {result.best_epoch:,}\n\n"
        f"{depth_bars(found.depth_probs, first_depth)}\n\n"
        f"E[ℓ] = {found.depth_mean:.2f}, m = {found.max_depth}{_rest(result)}\n"
        f"{_births(result)}\n\n"
        f"Test accuracy of the mixture over depths: {found.accuracy:.1%}; of each depth alone:\n\n"
        f"depth  accuracy\n{by_depth}\n\n"
        f"The page: {found.path}"
    )


def _page(found: DemoResult, omega: float, test: tuple[Tensor, Tensor]) -> str:
    model, result = found.model, found.fit
    first, last = model.support()
    facts = [
        ("Test accuracy", f"{found.accuracy:.1%}"),
        ("Expected depth E[ℓ]", f"{found.depth_mean:.2f}"),
        ("Last depth with mass, m", str(found.max_depth)),
        ("Layers born in training", str(len(result.history.births))),
        (f"Best of {len(result.history):,} epochs", f"{result.best_epoch:,}"),
        ("Training time", f"{result.seconds:.0f} s"),
    ]
    return page.render(
        "A network that found its own depth",
        f"An unbounded-depth network of width {WIDTH} learnt to tell the two arms of a spiral "
        f"(ω\u00a0=\u00a0{omega:g}) apart from {_ROWS:,} points. Nobody chose its depth: a "
        "posterior q(ℓ) over the number of layers was inferred together with the weights, and "
        "layers were created when that posterior reached for them.",
        facts,
        [
            sections.decision_boundary(model, *test, ("x₁", "x₂"), ("first arm", "second arm")),
            sections.depth_posterior(model),
            sections.score_by_depth(
                range(first, last + 1),
                found.accuracy_by_depth,
                found.accuracy,
                "accuracy",
                found.depth_probs,
            ),
            sections.depth_over_time(result.history),
            sections.elbo_terms(result.history),
            sections.score_over_time(result.history, "accuracy"),
        ],
    )


def _rest(result: FitResult) -> str:
    """When q(ℓ) came to rest, if a rule says so."""
    settled = result.history.settled_epoch
    return "" if settled is None else f"; q(ℓ) at rest since epoch {settled:,}"


def _births(result: FitResult) -> str:
    births = []
    for epoch, rows in itertools.groupby(result.history.births, key=lambda row: row["epoch"]):
        depths = [row["depth"] for row in rows]
        several = f"–{depths[-1]}" if len(depths) > 1 else ""
        births.append(f"{depths[0]}{several} (epoch {epoch})")
    text = f"Layers born during training: {', '.join(births) or 'none'}"
    return textwrap.fill(text, 88)
