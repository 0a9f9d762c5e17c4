"""Runs of `fit` with layers in shards: python sharded.py FOLDER SCENARIO …, as `several.py`."""

import importlib
import json
import os
import shutil
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

import several
import unbounded as ub
from several import data, train
from unbounded import parallel
from unbounded.priors import WeightPrior
from unbounded.training import Callback, shard_files

RUNS = {
    "clip": ("weights", {"clip": 0.05, "batch_size": 44, "micro_batches": 2}),  # 90 = 2·44 + 2
    "rate": ("rate", {"average": 0.9, "select": "log_score"}),
    "held_out": ("held_out", {"select": "score"}),
    "modules": ("modules", {"equal_heads": True, "equal_layers": True, "drop_inactive": True}),
}
"""A run of `several.train` and what is changed of it: every option that shards have to do with."""


class Bytes(Callback):
    """How much of the parameters and of their moments is here, and how much there is."""

    def on_fit_end(self, trainer):
        own = whole = 0
        parameters = [p for p in trainer.model.parameters() if p.dim()]
        state = trainer.optimizer.state
        moments = [t for p in parameters for t in state[p].values() if t.dim()]
        for tensor in (*parameters, *moments):
            whole += tensor.numel() * tensor.element_size()
            here = parallel.shards.local(tensor)
            own += here.untyped_storage().nbytes()
        self.found = [own, whole, len(moments) / len(parameters)]


class Slope(WeightPrior):
    """A prior without a closed form, whose cost is not a sum over numbers."""

    def kl(self, parameters):
        return torch.stack([(1 + p.square().sum()).sqrt() * 2 for p in parameters])


def run(name: str, shard: bool, **more):
    base, changes = RUNS[name]
    return train(base, shard=shard, **{"batch_size": 45, **changes, **more})


def noisy(shard: bool) -> dict:
    """One head for all depths, a prior of one's own, noise that is learnt; then what users do."""
    layers = ub.ResidualDense(3, 5, 1, shares_head=True)
    prior = Slope()
    model = ub.UDN(layers, ub.Gaussian(), weight_prior=prior, seed=1).double()
    x, _ = data()
    result = ub.fit(model, x, x[:, :1], epochs=2, batch_size=45, shard=shard, progress=False)
    state = several.whole_state(model)
    terms = evaluated(model, x)
    outputs, q = model.freeze()(x[:9])
    return {
        "rows": [{**row, "seconds": 0} for row in result.history],
        "state": state,
        "terms": terms,
        "predicted": model.predict(x[:9]).mean,
        "frozen": [outputs, q],
    }


LOST = ("hang", "hang_shards", "killed")
"""Runs that lose the second process."""

PARTS = (((0, 10), (16, 22), (32, 37)), ((10, 16), (22, 32)))
"""Rows of each process, batch by batch: the second one has none left for the third batch."""


class Stream(torch.utils.data.IterableDataset):
    """Batches that each process reads by itself."""

    def __len__(self):
        return 37

    def __iter__(self):
        x, y = data(37)
        if parallel.current().size == 1:
            parts = [(0, 16), (16, 32), (32, 37)]
        else:
            parts = PARTS[parallel.rank()]
        for start, stop in parts:
            yield x[start:stop], y[start:stop], several.weights(37)[start:stop]


def loaders(shard: bool = False) -> dict:
    """Each process has a loader of its own, also to score with."""
    model = several.model()
    loader = torch.utils.data.DataLoader(Stream(), batch_size=None)
    result = ub.fit(
        model, loader, num_data=37, monitor={"seen": loader}, epochs=3, lr=0.05, shard=shard
    )
    rows = [{**row, "seconds": 0} for row in result.history]
    return {"rows": rows, "state": several.whole_state(model)}


def batch_norm(shard: bool = False) -> dict:
    """Statistics of the rows of all processes, as if one had them all."""
    layers = ub.CustomLayers(
        partial(several.normed, nn.BatchNorm1d, 0.0), lambda depth: nn.Linear(6, 2)
    )
    model = several.model(layers=layers)
    options = {"batch_size": 29, "sync_batch_norm": True, "shard": shard, "progress": False}
    result = ub.fit(model, *data(), validation=data(41, seed=1), epochs=2, lr=0.01, **options)
    kinds = {type(m).__name__ for m in model.modules() if "BatchNorm" in type(m).__name__}
    assert kinds == {"BatchNorm1d"}  # the modules are as they were found
    rows = [{**row, "seconds": 0} for row in result.history]
    return {"rows": rows, "state": several.whole_state(model)}


def sampled() -> list:
    """A loader with torch's own sampler sees each row once; one without it is refused."""
    sets = torch.utils.data.TensorDataset(*data(40))
    sampler = torch.utils.data.DistributedSampler(sets)
    loader = torch.utils.data.DataLoader(sets, 10, sampler=sampler)
    ended = ub.fit(several.model(), loader, epochs=2)
    return [ended.history[-1]["step"], sampler.epoch]


def evaluated(model, x) -> list:
    with torch.no_grad():
        return list(model.elbo(x, x[:, :1], len(x)))


def used(folder: Path) -> dict:
    """Saved by all and written by one; whole again; trained on, by steps of one's own."""
    model = several.model()
    parallel.shards.shard(model, parallel.current())
    path = folder / "model.safetensors"
    ub.save(model, path)
    x, y = data(32)
    optimizer = ub.make_optimizer(model, lr=0.05, depth_lr_ratio=2.0)
    here = slice(0, 25) if parallel.rank() == 0 else slice(25, 32)
    if parallel.current().size == 1:
        here = slice(0, 32)
    for _ in range(12):
        info = ub.step(model, optimizer, x[here], y[here], 32, clip=1.0)
    parallel.unshard(model)
    assert not any(parallel.shards.is_sharded(p) for p in model.parameters())
    return {"saved": ub.load(path).state_dict(), "loss": info.loss, "state": model.state_dict()}


REFUSED = {
    "float16": "shard=True does not go with autocast=torch.float16: use torch.bfloat16",
    "optimizer": "shard=True does not go with an optimiser that is built already: give its class",
    "compiled": "shard=True does not go with a compiled model",
    "layers": "compiled layers do not go with shard=True",
    "scalar": "the parameter gate of Gated is a single number, which does not go with shard=True",
    "again": "Eager does not take a model in shards: give shard=True, or parallel.unshard it",
    "differs": "shard is True in process 0, False in process 1",
    "loader": "each process would read all rows of the loader. Give it a DistributedSampler",
    "sampler": "training data: the sampler is that of process 0 of 3, this is process",
    "empty": "the loader of process 1 gave no batches",
    "elbo": "the model is in shards: take its elbo under torch.no_grad()",
}


class Gated(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gate = nn.Parameter(torch.ones(()))


def refused(kind: str) -> None:
    model, options = several.model(), {"shard": True, "epochs": 1, "batch_size": 16}
    if kind == "float16":
        options["autocast"] = torch.float16
    if kind == "optimizer":
        options["optimizer"] = ub.make_optimizer(model)
    if kind == "layers":
        model.network.configure(compiles=True)
    if kind == "scalar":
        gated = ub.CustomLayers(lambda d: Gated(3, 3), lambda d: nn.Linear(3, 2))
        model = several.model(layers=gated)
    if kind in ("loader", "sampler", "empty"):
        wrong_loader(kind, model)
    if kind in ("again", "elbo"):
        parallel.shards.shard(model, parallel.current())
        options["shard"] = False
    if kind == "elbo":
        model.elbo(*data(), 90)
    if kind == "differs":
        options["shard"] = parallel.rank() == 0
    compiled = SimpleNamespace(_orig_mod=model)  # torch's own takes long to begin with
    ub.fit(compiled if kind == "compiled" else model, *data(), **options)


def wrong_loader(kind: str, model) -> None:
    sets = torch.utils.data.TensorDataset(*data())
    sampler = None
    if kind == "sampler":
        sampler = torch.utils.data.DistributedSampler(sets, 3, 0)
    if kind == "empty" and parallel.rank() == 1:
        sets = torch.utils.data.TensorDataset(*data(0))
    counted = 90 if kind == "empty" else None
    loader = torch.utils.data.DataLoader(sets, 16, sampler=sampler)
    ub.fit(model, loader, epochs=1, num_data=counted)


def refusals() -> dict[str, str]:
    told = {}
    for kind in REFUSED:
        try:
            refused(kind)
        except Exception as error:
            told[kind] = f"{type(error).__name__}: {error}"
    return told


def halves(folder: Path) -> dict:
    """A run that a checkpoint cuts in two, and one whose writer fails."""
    path, once, found = folder / "run.checkpoint", partial(run, "rate", True), {}
    stray = folder / f"{path.name}.{'0' * 16}.shards"
    if parallel.rank() == 0:
        stray.mkdir()  # what a process that was killed has left behind
    once(epochs=several.CUT, checkpoint=path)
    found["folders"] = [len(list(folder.glob("run.checkpoint.*.shards"))), stray.exists()]
    if parallel.rank() == 0:  # to be gone on with by others
        for name in ("one", "four"):
            shutil.copytree(folder, folder / name, ignore=_others)
    parallel.current().gather(None)  # until they are there
    digest = shard_files._digest
    try:
        once(epochs=several.CUT + 1, checkpoint=path, resume=True, callbacks=[Full()])
    except Exception as error:
        found["failed"] = f"{type(error).__name__}: {error}"
    shard_files._digest = digest
    found["cut"] = once(checkpoint=path, resume=True)
    found["alone"] = once(checkpoint=folder / "alone.checkpoint", resume=True)
    return found


def _others(folder: str, names: list[str]) -> list[str]:
    """What is not the checkpoint."""
    return [name for name in names if Path(folder).suffix == "" and "run.checkpoint" not in name]


class Full(Callback):
    """The disk of the second process, from now on."""

    def on_fit_start(self, trainer):
        if trainer.processes.rank == 1:
            shard_files._digest = self.fail

    def fail(self, file):
        raise OSError("no space left")


class Hang(Callback):
    """The second process goes silent in the middle of an epoch."""

    def on_fit_start(self, trainer):
        step, count = trainer.engine.step, [0]

        def silent(grow):
            count[0] += 1
            if count[0] == 4:
                if trainer.processes.rank == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
                self.since = time.monotonic()
            return step(grow)

        trainer.engine.step = silent


def lost(name: str, folder: Path) -> dict:
    """A run whose second process is lost: who waits says so in time, and ends."""
    pids, watch, options = parallel.current().gather(os.getpid()), Hang(), {}
    if name == "killed":
        watch = several.Signal(signal.SIGKILL, 5)
        path = {"checkpoint": folder / "killed.checkpoint", "checkpoint_every": 1, "resume": True}
        options = {**several.SHORT, **path}
    try:
        return train("plain", shard=name != "hang", callbacks=[watch], **options)
    except Exception as error:
        told = [f"{type(error).__name__}: {error}", time.monotonic() - watch.since]
        (folder / f"{name}.json").write_text(json.dumps(told))
        if name != "killed":
            os.kill(pids[1], signal.SIGKILL)
        raise


def lose(folder: Path) -> None:
    """All such runs at once, since they wait for most of the time; then one of them goes on."""
    os.environ["UNBOUNDED_TIMEOUT"] = "5"
    pairs = {name: several.start(name, folder) for name in LOST}
    statuses = {name: several.ended(pair) for name, pair in pairs.items()}
    (folder / "statuses.json").write_text(json.dumps(statuses))
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"  # nobody is killed this time
    several.fork(folder, ["killed"])


def main(scenario: str, folder: Path) -> None:
    found: dict = {}
    if scenario == "two":
        counted = Bytes()
        found = {name: run(name, True) for name in RUNS if name != "clip"}
        found["clip"] = run("clip", True, callbacks=[counted])
        found["bytes"] = parallel.current().gather(counted.found)
        found |= {"noisy": noisy(True), "used": used(folder), **halves(folder)}
        found |= {"loaders": loaders(), "batch_norm": batch_norm(True), "sampled": sampled()}
        (folder / f"told.{parallel.rank()}.json").write_text(json.dumps(refusals()))
    if scenario == "four":
        found = {"clip": run("clip", True)}
        path = folder / "four" / "run.checkpoint"  # what two have begun
        found["half"] = run("rate", True, checkpoint=path, resume=True)
    if scenario in LOST:
        found = lost(scenario, folder)
    if parallel.rank() == 0:
        torch.save(found, folder / f"{scenario}.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    several.main = main
    for name in ("_dynamo", "distributed.fsdp", "distributed.checkpoint"):
        importlib.import_module(f"torch.{name}")  # once, before the processes part
    folder, scenarios = Path(sys.argv[1]), sys.argv[2:]
    several.fork(folder, scenarios)
    lose(folder)
