"""From a population back to ordinary models and results."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded.engine import births
from unbounded.engine.blocks import Block, unpack_into
from unbounded.training.history import History

if TYPE_CHECKING:
    from unbounded.engine.population import Population
    from unbounded.model import UDN

WHOLE = ("max_depth", "num_layers")


@dataclass
class MemberResult:
    """How the training of one member ended."""

    history: History
    best_epoch: int
    """The epoch whose weights the model now has."""
    best_score: float | None
    """Its validation score, if there was a validation set."""
    stopped: str
    """Why it ended: "epochs", "patience", "interrupted" or "diverged"."""
    best_row: dict[str, Any]
    """The history's row of that epoch, kept even where the history is thinned out."""


@torch.no_grad()
def write_models(population: "Population") -> None:
    """Give every model its member's best weights, or the last ones without a validation set."""
    trained = population.epoch > 0
    with_best = trained and "val" in population.sets
    source = "best" if with_best else "average" if population.average is not None else "value"
    born = population.state["best_born" if with_best else "born"].tolist()
    values = [(block, getattr(block, source).cpu()) for block in population.blocks]
    buffers = population.best_buffers if with_best else population.network.buffers()
    buffers = {name: tensor.cpu() for name, tensor in buffers.items()}
    for member, model in enumerate(population.models):
        births.resize(model, born[member])
        for block, rows in values:
            if block.members.start <= member < block.members.stop:
                mine = rows[:, member - block.members.start]
                if block.role == "depth":
                    population.depths.write(model, block, mine[0])
                else:
                    _write(model, block, mine)
        _write_buffers(model, member, buffers)


def results(population: "Population", stopped: str) -> list[MemberResult]:
    """One result for each member, in the order in which the models were given."""
    host = {name: tensor.cpu() for name, tensor in population.state.items()}
    found: dict[int, MemberResult] = {}
    for member, index in enumerate(population.order):
        found[index] = _result(population, member, host, stopped)
    return [found[index] for index in range(len(found))]


def _write(model: "UDN", block: Block, rows: Tensor) -> None:
    if block.role == "likelihood":
        unpack_into(model.likelihood, rows[0])
        return
    container = model.network.hidden if block.role == "hidden" else model.network.heads
    for depth, row in zip(block.depths, rows, strict=True):
        if str(depth) in container:
            unpack_into(container[str(depth)], row)


def _write_buffers(model: "UDN", member: int, buffers: dict[str, Tensor]) -> None:
    for name, tensor in buffers.items():
        role, depth, rest = name.split(".", 2)
        container = model.network.hidden if role == "hidden" else model.network.heads
        own = dict(container[depth].named_buffers()) if depth in container else {}
        if rest in own:
            own[rest].copy_(tensor[member])


def _result(
    population: "Population", member: int, host: dict[str, Tensor], stopped: str
) -> MemberResult:
    likelihood, names = population.models[0].likelihood, population.columns
    score = likelihood.score_name

    def row(values: Tensor) -> dict[str, Any]:
        named: dict[str, Any] = dict(zip(names, values.tolist(), strict=True))
        for name in names:
            if name in WHOLE:
                named[name] = int(named[name])
            elif name.endswith(f"_{score}") and score != "log_score":
                named[name] = likelihood.finish_score(named[name])
        return named

    lasted = int(host["epochs"][member])
    steps = -(-population.data.sizes[member] // population.batch_size)
    pairs = zip(population.recorded, population.table, strict=True)
    rows = [
        {"epoch": epoch, "step": epoch * steps, **row(table[member])}
        for epoch, table in pairs
        if epoch <= lasted
    ]
    born = [
        {"step": step, "epoch": -(-step // steps), "depth": depth}
        for depth, step in enumerate(host["births"][member].tolist(), 1)
        if step
    ]
    if host["failed"][member]:
        stopped = "diverged"
    elif not host["alive"][member]:
        stopped = "patience"
    best_epoch = int(host["best_epoch"][member])
    with_best = best_epoch > 0
    best_row = row(host["best_row" if with_best else "row"][member])
    column = "val_log_score" if population.select == "log_score" else f"val_{score}"
    return MemberResult(
        History(rows, born),
        best_epoch if with_best else lasted,
        best_row[column] if with_best else None,
        stopped,
        best_row,
    )
