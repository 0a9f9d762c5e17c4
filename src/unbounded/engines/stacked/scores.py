"""Scores of all members on sets of rows."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.engines.stacked.data import MemberData
from unbounded.engines.stacked.rules import StackedRule
from unbounded.steps import held_out_rows as over

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
    totals = torch.zeros(count, 2, 5, dtype=torch.float64, device=work.device)
    piece = max(256, min(8192, _SCORED[work.device.type] // count))
    for start in range(0, data.size, piece):
        x, y, weights = data.part(start, min(start + piece, data.size))
        outputs = work.network.evaluate(x, work.source)
        rows = work.likelihood.scores(outputs, log_q, y, work.source)  # (members, 2, rows)
        if rule is not None:
            rule.keep(start, work.likelihood.log_scores(outputs, y, work.source))
        totals += over.sums(rows, None if weights is None else weights[:, None])
    return over.mean_and_error(totals)
