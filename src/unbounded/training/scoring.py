"""Scores of a model on data, with one host read for all sets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from unbounded.likelihoods.base import total
from unbounded.predictive import evaluating
from unbounded.training.batches import ArrayBatches, LoaderBatches

if TYPE_CHECKING:
    from unbounded.model import UDN


def score(
    model: "UDN",
    sets: Mapping[str, ArrayBatches | LoaderBatches],
    autocast: torch.dtype | None = None,
) -> dict[str, float]:
    """NAME_SCORE and NAME_log_score for each set: the likelihood's score and the mean log score.

    Rows count as often as their weights say, where a set has weights. Never creates a layer; the
    model's mode is left as it was.
    """
    likelihood = model.likelihood
    totals = []
    with evaluating(model), torch.inference_mode():
        log_q = model.depth_log_probs()
        for data in sets.values():
            # Sums of the score, the log score and the weights; double, so that counts are exact.
            sums = torch.zeros(3, dtype=torch.float64, device=log_q.device)
            for x, y, weights in data:
                if autocast is None:
                    outputs = model(x)
                else:
                    with torch.autocast(x.device.type, autocast):
                        outputs = model(x)
                    outputs = outputs.float()
                prediction = likelihood.predict(outputs, log_q)
                log_prob = prediction.log_prob(y)
                parts = (
                    # A likelihood of the user's own may know nothing of weights.
                    likelihood.score(prediction, y)
                    if weights is None
                    else likelihood.score(prediction, y, weights),
                    total(log_prob, weights),
                    log_prob.new_tensor(y.shape[0]) if weights is None else weights.sum(),
                )
                sums = sums + torch.stack([part.to(sums.dtype) for part in parts])
            totals.append(sums)
        values = torch.stack(totals).tolist() if totals else []
    result: dict[str, float] = {}
    for name, (first, log_score, count) in zip(sets, values, strict=True):
        if likelihood.score_name != "log_score":
            result[f"{name}_{likelihood.score_name}"] = likelihood.finish_score(first / count)
        result[f"{name}_log_score"] = log_score / count
    return result
