"""The predictive mixture over depths; never creates a layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unbounded.likelihoods import Prediction

if TYPE_CHECKING:
    from unbounded.model import UDN


def predict(model: "UDN", x: Tensor, batch_size: int | None = None) -> Prediction:
    """p(y' | x', D) ≈ Σ_ℓ q(ℓ) p(y'; Ω_ℓ(x')) (the paper's predictive equation).

    Args:
        model: the fitted model; used in evaluation mode and left as it was.
        x: inputs on any device, `(rows, …)`.
        batch_size: rows at a time, for inputs whose hidden states would not fit; the results
            of all rows are kept.

    Returns:
        The likelihood's prediction, with outputs `(depth, rows, *event)`.
    """
    like = model.anchor
    with evaluating(model), torch.inference_mode():
        log_q = model.depth_log_probs()
        if batch_size is None or x.shape[0] <= batch_size:
            outputs = model(_like(x, like))
        else:
            pieces = [model(_like(piece, like)) for piece in x.split(batch_size)]
            outputs = torch.cat(pieces, 1)
        return model.likelihood.predict(outputs, log_q)


def predict_in_batches(model: "UDN", x: Tensor, batch_size: int) -> Iterator[Prediction]:
    """One prediction for each `batch_size` rows, for inputs whose outputs would not fit either."""
    for piece in x.split(batch_size):
        yield predict(model, piece)


def detach_prediction(prediction: Prediction) -> Prediction:
    """The same prediction on the CPU, usable outside of inference mode."""
    return replace(
        prediction,
        outputs=prediction.outputs.cpu().clone(),
        depth_log_probs=prediction.depth_log_probs.cpu().clone(),
    )


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


def _like(x: Tensor, like: Tensor) -> Tensor:
    """x on the model's device and, if it is floating point, in its dtype."""
    dtype = like.dtype if x.is_floating_point() else x.dtype
    return x.to(device=like.device, dtype=dtype)
