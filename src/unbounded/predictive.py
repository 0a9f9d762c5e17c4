"""The predictive mixture over depths, of one model and of several; never creates a layer.

The predictive of a deep ensemble, p(y' | x') = 1/R Σ_r Σ_ℓ q_r(ℓ) p(y'; Ω_rℓ(x')), is a mixture
like a lone model's, with more components; so it is the same kind of prediction.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from unbounded import trees
from unbounded.exits import EarlyExit, EarlyPrediction, predict_early
from unbounded.likelihoods import Gaussian, Prediction
from unbounded.likelihoods.gaussian import Noise

if TYPE_CHECKING:
    from unbounded.model import UDN


@overload
def predict(model: "UDN", x: trees.Tree, batch_size: int | None = None) -> Prediction: ...


@overload
def predict(
    model: "UDN", x: trees.Tree, batch_size: int | None = None, *, exit: float | EarlyExit
) -> EarlyPrediction: ...


def predict(
    model: "UDN",
    x: trees.Tree,
    batch_size: int | None = None,
    *,
    exit: float | EarlyExit | None = None,
) -> Prediction | EarlyPrediction:
    """p(y' | x', D) ≈ Σ_ℓ q(ℓ) p(y'; Ω_ℓ(x')) (the paper's predictive equation).

    Args:
        model: the fitted model; used in evaluation mode and left as it was.
        x: inputs on any device, `(rows, …)`; or a tuple or dict of such parts.
        batch_size: rows at a time, for inputs whose hidden states would not fit; the results
            of all rows are kept.
        exit: let each row leave at the first depth where it is that sure (`EarlyExit`); for
            classes, labels and tokens.

    Returns:
        The likelihood's prediction, with outputs `(depth, rows, *event)`; with `exit` the
        probabilities and the depth of each row.
    """
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    if exit is not None:
        return _predict_early(model, x, batch_size, EarlyExit.of(exit))
    like = model.anchor
    with evaluating(model), without_gradients(model):
        log_q = model.depth_log_probs()
        model.layers.check_inputs(x)
        if batch_size is None or trees.num_rows(x) <= batch_size:
            outputs = model(trees.moved(x, like.device, like.dtype))
        else:
            pieces = [
                model(trees.moved(piece, like.device, like.dtype))
                for piece in trees.split(x, batch_size)
            ]
            outputs = torch.cat(pieces, 1)
        model.likelihood.check_outputs(outputs)
        return model.likelihood.predict(outputs, log_q)


def _predict_early(
    model: "UDN", x: trees.Tree, batch_size: int | None, exit: EarlyExit
) -> EarlyPrediction:
    like, likelihood = model.anchor, model.likelihood
    with evaluating(model), without_gradients(model):
        model.layers.check_inputs(x)
        first, last = model.support()
        stack, log_q = model.network.stack(last, first), model.depth_log_probs()
        found = [
            predict_early(
                stack,
                model.layers,
                likelihood,
                log_q,
                trees.moved(piece, like.device, like.dtype),
                exit,
            )
            for piece in ([x] if batch_size is None else trees.split(x, batch_size))
        ]
        log_probs = torch.cat([one.log_probs for one in found])
        return EarlyPrediction(likelihood, log_probs, torch.cat([one.depths for one in found]))


def without_gradients(model: "UDN") -> AbstractContextManager[None]:
    """Inference mode; of a model in shards no more than no gradients.

    Torch keeps the memory that it once has gathered a layer in. Made in inference mode, it would
    be of no use in training.
    """
    return torch.inference_mode() if model.network.placement.is_whole else torch.no_grad()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; each module's own mode afterwards."""
    if not model.training:
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def predict_ensemble(
    models: Sequence["UDN"], x: trees.Tree, batch_size: int | None = None
) -> Prediction:
    """The mixture of the models' predictives, each with the same weight.

    Args:
        models: with one likelihood, whose parameters may differ.
        x: inputs, `(rows, …)`.
        batch_size: rows at a time.

    Returns:
        A prediction whose first axis goes over the depths of the first model, then of the
        second, and so on.
    """
    return combine([predict(model, x, batch_size) for model in models])


def combine(predictions: Sequence[Prediction]) -> Prediction:
    """One mixture of several predictions of the same rows, each with the same weight."""
    if not predictions:
        raise ValueError("an ensemble needs at least one prediction")
    first = predictions[0]
    if len({type(p.likelihood) for p in predictions}) > 1:
        kinds = sorted({type(p.likelihood).__name__ for p in predictions})
        raise ValueError(f"the members of an ensemble have one likelihood, got {kinds}")
    log_q = torch.cat([p.depth_log_probs for p in predictions]) - math.log(len(predictions))
    likelihood, outputs = first.likelihood, [p.outputs for p in predictions]
    if isinstance(likelihood, Gaussian):  # each member has noise of its own
        pieces = [_noise(p).split(p.outputs) for p in predictions]
        outputs = [torch.cat([m, s.expand_as(m)], -1) for m, s in pieces]
        likelihood = Gaussian(GivenNoise())
    elif any(True for _ in likelihood.parameters()):
        raise TypeError(
            f"members of an ensemble differ in the parameters of {type(likelihood).__name__}, "
            "which one mixture cannot carry"
        )
    return likelihood.predict(torch.cat(outputs), log_q)


class GivenNoise(Noise):
    """σ stands beside the mean, in the second half of the outputs."""

    outputs_per_target = 2

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and scales."""
        means, scales = outputs.chunk(2, -1)
        return means, scales

    def config(self) -> dict[str, Any]:
        """There is nothing to say."""
        return {}


def _noise(prediction: Prediction) -> Noise:
    assert isinstance(prediction.likelihood, Gaussian)
    return prediction.likelihood.noise
