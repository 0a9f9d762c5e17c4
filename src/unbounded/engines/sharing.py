"""What an engine shares out among processes: rows, layers, the statistics of batch norms."""

import torch

from unbounded import trees
from unbounded.engines.base import Engine, TrainingTask, refuse
from unbounded.model import UDN
from unbounded.parallel import Processes, batch_norm, shards
from unbounded.steps.batches import Batch, Batches, LoaderBatches, OwnRows


def own_part(model: UDN, data: Batches, batch: Batch, processes: Processes) -> tuple[Batch, float]:
    """The rows of a batch that are this process's, and their share of all observations."""
    if isinstance(data, LoaderBatches):  # each process has read its own
        return batch, data.share
    if isinstance(batch, OwnRows):
        return batch, batch.share
    here, share = processes.own_rows(batch.y.shape[0])
    held = model.likelihood.observations(batch.y)
    if held is not None:
        share = (held[here].sum() / held.sum()).item() if share else 0.0
    return trees.rows(batch, here), share


def synchronise(task: TrainingTask, model: UDN) -> None:
    """Batch norms that see the rows of all processes, if the task says so."""
    if task.options.sync_batch_norm:
        batch_norm.synchronise(model.network, task.processes)


def shard(engine: Engine, task: TrainingTask, number: int) -> None:
    """The layers of a model in shards if the task says so, before an optimiser sees them.

    Raises:
        ValueError: one line for an option that does not go with it.
    """
    model, options = task.models[number], task.options
    if not options.shard:
        if not model.network.placement.is_whole:
            raise refuse(engine, "a model in shards", "give shard=True, or parallel.unshard it")
        return
    placement = model.network.placement
    if isinstance(placement, shards.Shards) and placement.processes is not task.processes:
        raise ValueError("the model is in shards of other processes: let them parallel.unshard it")
    built = hasattr(options.optimizer, "param_groups")
    for given, what, instead in (
        (built, "an optimiser that is built already", "give its class, or a partial of it"),
        (options.autocast is torch.float16, "autocast=torch.float16", "use torch.bfloat16"),
        (task.calls[number] is not model, "a compiled model", "give the model itself"),
    ):
        if given:
            raise ValueError(f"shard=True does not go with {what}: {instead}")
    shards.shard(model, task.processes)
