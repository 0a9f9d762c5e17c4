"""Scores of all members on sets of rows."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.engines.stacked.data import MemberData
from unbounded.engines.stacked.rules import StackedRule

if TYPE_CHECKING:
    from unbounded.engines.stacked.computation import Computation

# Rows times members scored at a time: large for a GPU's many units, small for a CPU's caches.
_SCORED = {"cuda": 1 << 21, "cpu": 1 << 15}


def score_set(
    work: "Computation", data: MemberData, log_q: Tensor, rule: StackedRule | None
) -> tuple[Tensor, Tensor]:
    """The mean score (before `finish_score`) and the mean log score, `(members, 2)`.

    And their standard errors.
    """
    count = len(work.models)
    totals, squares = torch.zeros(2, count, 2, dtype=torch.float64, device=work.device)
    counted = torch.zeros(count, 1, dtype=torch.float64, device=work.device)
    piece = max(256, min(8192, _SCORED[work.device.type] // count))
    for start in range(0, data.size, piece):
        x, y, weights = data.part(start, min(start + piece, data.size))
        outputs = work.network.evaluate(x, work.source)
        rows = work.likelihood.scores(outputs, log_q, y, work.source)  # (members, 2, rows)
        if rule is not None:
            rule.keep(start, work.likelihood.log_lik_of(outputs, y, work.source))
        if weights is None:
            counted += rows.shape[2]
        else:
            counted += weights.sum(1, keepdim=True, dtype=torch.float64)
            rows = torch.where(weights[:, None] > 0, rows * weights[:, None], 0.0)
        totals += rows.sum(2, dtype=torch.float64)
        squares += (rows.double() ** 2).sum(2)
    means = totals / counted
    variance = (squares / counted - means**2).clamp(min=0)
    return means, (variance / (counted - 1).clamp(min=1)).sqrt()
