"""The scores of all members after an epoch, and the best epoch of each so far."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.engine.data import Rows

if TYPE_CHECKING:
    from unbounded.engine.population import Population

# Rows times members scored at a time: large for a GPU's many units, small for a CPU's caches.
_ROWS = {"cuda": 1 << 21, "cpu": 1 << 15}


@torch.no_grad()
def score_epoch(population: "Population") -> None:
    """This epoch's row of the history, and the best epoch so far."""
    state = population.state
    state["epochs"] += state["alive"]
    source = "value" if population.average is None else "average"
    values = population.depths.values(source)
    last = population.depths.max_depths(values, population.depth + 1)
    q = population.depths.log_q(values, population.levels <= last[:, None]).exp()
    # As in `UDN.support`: depths that no step has reached yet are left out.
    usable = population.levels <= last.minimum(state["born"])[:, None]
    log_q = population.depths.log_q(values, usable).to(population.dtype)
    terms = population.sums / population.taken.clamp(min=1)[:, None]
    named = {
        "elbo": terms[:, 0] - terms[:, 1] - terms[:, 2],
        "expected_log_lik": terms[:, 0],
        "depth_kl": terms[:, 1],
        "weight_kl": terms[:, 2],
        "depth_mean": (q * population.levels).sum(1),
        "max_depth": last.double(),
        "num_layers": state["born"].double(),
    }
    likelihood = population.likelihood.likelihood
    for name, data in population.sets.items():
        score, log_score = _score_set(population, data, log_q, source)
        named[f"{name}_{likelihood.score_name}"] = score
        named[f"{name}_log_score"] = log_score
    state["row"].copy_(torch.stack([named[column] for column in population.columns], 1))
    if "val" in population.sets:
        log_score = named["val_log_score"]
        score = named[f"val_{likelihood.score_name}"]
        if population.select == "log_score":
            score = log_score
        elif not likelihood.higher_is_better:
            score = -score
        _keep_best(population, torch.stack([score, log_score], 1), source)


def _score_set(
    population: "Population", data: Rows, log_q: Tensor, source: str
) -> tuple[Tensor, Tensor]:
    """The mean score (before `finish_score`) and the mean log score, `(members,)` each."""
    count = len(population.models)
    totals = torch.zeros(count, 2, dtype=torch.float64, device=population.device)
    counted = torch.zeros(count, 1, dtype=torch.float64, device=population.device)
    piece = max(256, min(8192, _ROWS[population.device.type] // count))
    for start in range(0, data.size, piece):
        x, y, weights = data.part(start, min(start + piece, data.size))
        outputs = population.network.evaluate(x, source)
        rows = population.likelihood.scores(outputs, log_q, y, source)  # (members, 2, rows)
        if weights is None:
            counted += rows.shape[2]
        else:
            counted += weights.sum(1, keepdim=True, dtype=torch.float64)
            rows = torch.where(weights[:, None] > 0, rows * weights[:, None], 0.0)
        totals += rows.sum(2, dtype=torch.float64)
    means = totals / counted
    return means[:, 0], means[:, 1]


def _keep_best(population: "Population", key: Tensor, source: str) -> None:
    """Keep the members whose scores `(members, 2)` are the best so far; stop the hopeless."""
    state = population.state
    best, alive = state["best_key"], state["alive"]
    better = (key[:, 0] > best[:, 0]) | ((key[:, 0] == best[:, 0]) & (key[:, 1] > best[:, 1]))
    better = (better | (state["best_epoch"] == 0)) & alive
    pairs = [
        (state["best_key"], key),
        (state["best_epoch"], state["epochs"]),
        (state["best_born"], state["born"]),
        (state["best_row"], state["row"]),
    ]
    pairs += [
        (population.best_buffers[name], now) for name, now in population.network.buffers().items()
    ]
    for kept, now in pairs:
        kept.copy_(torch.where(better.view(-1, *[1] * (now.dim() - 1)), now, kept))
    for block in population.blocks:
        assert block.best is not None
        mask = better[block.members, None]
        block.best.copy_(torch.where(mask, getattr(block, source), block.best))
    state["bad_epochs"].copy_(torch.where(better, 0, state["bad_epochs"] + alive))
    if population.patience is not None:
        state["alive"] &= state["bad_epochs"] < population.patience
