"""Scores of a model on data, with one host read for all sets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

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

    Never creates a layer; the model's mode is left as it was.
    """
    likelihood = model.likelihood
    totals, counts = [], []
    with evaluating(model), torch.inference_mode():
        log_q = model.depth_log_probs()
        for data in sets.values():
            count = 0
            total = torch.zeros(2, device=log_q.device)
            for x, y, _ in data:
                if autocast is None:
                    outputs = model(x)
                else:
                    with torch.autocast(x.device.type, autocast):
                        outputs = model(x)
                    outputs = outputs.float()
                prediction = likelihood.predict(outputs, log_q)
                sums = (likelihood.score(prediction, y), prediction.log_prob(y).sum())
                total = total + torch.stack([s.to(total.dtype) for s in sums])
                count += y.shape[0]
            totals.append(total)
            counts.append(count)
        values = torch.stack(totals).tolist() if totals else []
    result: dict[str, float] = {}
    for name, count, (first, log_score) in zip(sets, counts, values, strict=True):
        if likelihood.score_name != "log_score":
            result[f"{name}_{likelihood.score_name}"] = likelihood.finish_score(first / count)
        result[f"{name}_log_score"] = log_score / count
    return result
