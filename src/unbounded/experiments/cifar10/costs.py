"""What a trained model costs: its weights, the work of a forward pass, how fast it predicts."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unbounded.baselines.equilibrium import FixedPoint
from unbounded.model import UDN
from unbounded.predictive import evaluating, predict

_COUNTED, _PASSES = 100, 3


def cost(model: UDN, batches: Sequence[Tensor], autocast: torch.dtype | None) -> dict[str, Any]:
    """Numbers for a run's record.

    Args:
        model: trained.
        batches: inputs on its device, `(rows, channel, height, width)` each.
        autocast: the dtype of its layers.

    Returns:
        `parameters`: trained weights that a prediction looks at. `flops`: of an image, counted in
        products and sums of matrices and convolutions, a mean over 100 images: solvers take as many
        steps as they need. `images_per_second`: of predictions, the median of three passes.
    """
    first, last = model.support()
    active = model.network.active(last, first, cumulative_heads=model.cumulative_heads)
    with _layers_in(model, autocast):
        found: dict[str, Any] = {
            "parameters": sum(p.numel() for p in active.parameters),
            "flops": flops(model, batches[0][:_COUNTED]),
            "images_per_second": _speed(model, batches),
        }
        points = [m for m in model.modules() if isinstance(m, FixedPoint)]
        if points:  # of the last batch: how near to a fixed point the states are
            found["residual"] = float(points[0].residuals.median())
    return found


def flops(model: UDN, x: Tensor) -> float:
    """Of a prediction, for an image: a multiplication and an addition are two."""
    with FlopCounterMode(display=False) as counter:
        predict(model, x)
    return float(counter.get_total_flops() / len(x))


def flops_by_depth(model: UDN, x: Tensor) -> list[float]:
    """Of an image, to run the layers 1 … ℓ and the heads from the first with mass to ℓ.

    For each depth of the support, first to last.
    """
    first, last = model.support()
    found, total = list[float](), 0
    with evaluating(model), torch.no_grad():
        stack = model.network.stack(last, first)
        state = x
        for depth, layer in enumerate(stack.hidden, 1):
            with FlopCounterMode(display=False) as counter:
                state = layer(state)
                if depth >= first:
                    stack.heads[0 if model.network.shares_head else depth - first](state)
            total += counter.get_total_flops()
            if depth >= first:
                found.append(total / len(x))
    return found


def _speed(model: UDN, batches: Sequence[Tensor]) -> float:
    device = model.anchor.device
    seconds = []
    predict(model, batches[0])  # what the first pass sets up does not count
    for _ in range(_PASSES):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        for batch in batches:
            predict(model, batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return sum(map(len, batches)) / median(seconds)


def _layers_in(model: UDN, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(
        model.anchor.device.type, dtype or torch.bfloat16, enabled=dtype is not None
    )
