"""Runs of `fit` in several processes: python several.py FOLDER SCENARIO …

The first one writes what they ended with; the tests compare it with a run in one process.
"""

import io
import json
import os
import signal
import socket
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import unbounded as ub
from unbounded import cli, parallel
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.parallel import buckets
from unbounded.training import Callback, RateAscent

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
ROWS, FEATURES = 90, 3
"""90 rows in batches of 16: the last one has 10, and with 4 processes no batch divides evenly."""


def data(rows: int = ROWS, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def weights(rows: int = ROWS):
    return torch.rand(rows, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.5


class Moves(Callback):
    """λ goes up after the first epoch and comes down after the second: births, a smaller support.

    Real problems do this over many epochs; tests have less time.
    """

    def on_epoch_end(self, trainer, row):
        self.move(trainer)

    def on_fit_start(self, trainer):
        self.move(trainer)  # the checkpoint was written before

    def move(self, trainer):
        factor = {1: 3.0, 2: 0.25}.get(trainer.epoch)
        if factor is not None:
            for model in trainer.models:
                family = model.depth
                if isinstance(family, ub.TruncatedNormal):
                    place, spread = {3.0: (6.0, 1.5), 0.25: (2.0, 0.7)}[factor]
                    family.put(torch.tensor(place), torch.tensor(spread))
                else:
                    family.scale_rate(torch.tensor(factor, dtype=torch.float64))


def model(family=None, layers=None, **options):
    family = ub.TruncatedPoisson(1.5) if family is None else family
    layers = ub.Dense(FEATURES, 6, 2) if layers is None else layers
    return ub.UDN(layers, ub.Categorical(2), family, seed=3, **options).double().to(DEVICE)


def normed(norm, dropout, depth):
    size = FEATURES if depth == 1 else 6
    return nn.Sequential(nn.Linear(size, 6), norm(6), nn.Tanh(), nn.Dropout(dropout))


OPTIONS = {
    "plain": {},
    "clip": {"clip": 0.05},
    "rate": {"depth_rule": lambda: RateAscent(speed=0.05, memory=4, youth=6)},
    "held_out": {"depth_rule": lambda: ub.HeldOutAscent(speed=0.5)},
    "weights": {"weights": weights()},
    "uneven": {"batch_size": 29},  # 90 = 3·29 + 3: with 4 processes one has no row at last
    "accumulation": {"micro_batches": 3},
    "average": {"average": 0.9},
    "paces": {"equal_heads": True, "equal_layers": True, "drop_inactive": True},
    "modules": {"optimizer": partial(torch.optim.SGD, momentum=0.9)},
    "both": {"models": 2, "engine": Eager},
    "combined": {
        "clip": 0.05,
        "weights": weights(),
        "batch_size": 29,
        "micro_batches": 3,
        "average": 0.9,
        "patience": 2,
        "select": "score",
        "schedule": lambda epoch: 1 / (1 + epoch),
    },
    "graphs": {
        "engine": Graphs,
        "depth_rule": lambda: RateAscent(speed=0.05, memory=4, youth=6),
        "clip": 0.05,
        "weights": weights(),
        "batch_size": 29,
        "micro_batches": 3,
        "equal_heads": True,
    },
    "dropout": {},
    "batch_norm": {},
}


SHORT = {"batch_size": 45}

OWN = ("dropout", "batch_norm")
"""What depends on which rows a process has: masks, and the statistics of its rows."""

FOUR = ("held_out", "combined")
"""A depth rule; and all else, with rows that do not divide evenly, or that one goes without."""

CUT = 2
"""Epochs after which runs are cut in two."""


def train(name: str, epochs: int = 4, **changes):
    """One run; returns all that should be the same, whoever made it."""
    options = {**OPTIONS[name], **changes}
    options = {k: v() if k in ("depth_rule", "engine") else v for k, v in options.items()}
    family = ub.TruncatedNormal(2.0) if name == "held_out" else None
    layers = None
    if name in ("modules", "dropout", "batch_norm"):
        norm = nn.BatchNorm1d if name == "batch_norm" else nn.LayerNorm
        share = 0.2 if name == "dropout" else 0.0
        layers = ub.CustomLayers(partial(normed, norm, share), lambda depth: nn.Linear(6, 2))
        torch.manual_seed(parallel.rank())
    # Small buckets go off while the backward pass goes on; the usual ones hold all of a model.
    small = name in ("modules", "accumulation", "both", "combined", "graphs")
    buckets.BUCKET_BYTES = 200 if small else 8 << 20
    many = options.pop("models", 1)
    models = [model(family, layers) for _ in range(many)]
    callbacks = [Moves(), *options.pop("callbacks", [])]
    result = ub.fit(
        models if many > 1 else models[0],
        *data(),
        validation=(*data(41, seed=1), weights(41)) if "weights" in options else data(41, seed=1),
        monitor={"test": data(3, seed=2)},
        epochs=epochs,
        callbacks=callbacks,
        progress=False,
        **{"batch_size": 16, "lr": 0.01, "select": "last", **options},
    )
    hooks = [p._post_accumulate_grad_hooks for one in models for p in one.parameters()]
    assert not any(hooks)  # the models are as they were found
    results = result if many > 1 else [result]
    rows = [[{**row, "seconds": 0} for row in one.history] for one in results]
    births = [one.history.births for one in results]
    return {"rows": rows, "births": births, "states": [whole_state(one) for one in models]}


def whole_state(one) -> dict[str, torch.Tensor]:
    """A model's state, gathered where it is in shards."""
    return {name: one.network.placement.whole(v).cpu() for name, v in one.state_dict().items()}


class Signal(Callback):
    """The second process gets a signal in the middle of an epoch, at one of its attempts."""

    def __init__(self, number, step=15, attempt=0):
        self.number, self.step, self.attempt = number, step, attempt

    def on_fit_start(self, trainer):
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.since = time.monotonic()
        if trainer.processes.rank != 1 or attempt != self.attempt:
            return
        step, count = trainer.engine.step, [0]

        def signalled(grow):
            count[0] += 1
            if count[0] == self.step:
                os.kill(os.getpid(), self.number)
            return step(grow)

        trainer.engine.step = signalled


KINDS = {
    "size": "data.x.shape[0] is 90 in process 0, 89 in process 1",
    "nan": "inputs must be finite, got 1 NaN",
    "seed": "seed is 3 in process 0, 77 in process 1",
    "option": "clip is nothing in process 0, 1.0 in process 1",
    "version": "version of unbounded is '0.1.0' in process 0, '9.9' in process 1",
    "few": "training data: there is one row",
    "batch": "batch_size is 1 for",
    "graphs": "Graphs does not take shard=True with several processes: use Eager()",
    "captured": "Graphs does not take sync_batch_norm=True with several processes: use Eager()",
    "stacked": "Stacked does not take several processes: use Eager()",
    "loader": "training data: each process would read all rows of the loader",
    "folder": "checkpoint: the folder /proc/no does not exist",
    "full": "cannot write",
    "wrapped": "give the model itself",
    "drift": "the models differ after epoch 1: 5 layers, raw_rate = ",
    "diverges": "the loss is not finite",
}
"""What is not as it should be, mostly in the second process, and what every process then says."""


def wrong(kind: str, folder: Path) -> None:
    second = parallel.rank() == 1
    x, y = data()
    options = {"epochs": 2, "batch_size": 16, "progress": False}
    if kind == "size" and second:
        x, y = x[:-1], y[:-1]
    if kind == "nan" and second:
        x[5, 0] = float("nan")
    if kind == "seed" and second:
        options["seed"] = 77
    if kind == "option" and second:
        options["clip"] = 1.0
    if kind == "version" and second:
        ub.__version__ = "9.9"
    if kind == "few":
        x, y, options["batch_size"] = x[:1], y[:1], 1
    if kind == "batch":
        options["batch_size"] = 1
    if kind == "stacked":
        options["engine"] = Stacked()
    if kind in ("graphs", "captured"):
        named = {"graphs": "shard", "captured": "sync_batch_norm"}[kind]
        options |= {"engine": Graphs(), named: True}
    if kind == "loader":
        sets = torch.utils.data.TensorDataset(x, y)
        x, y = torch.utils.data.DataLoader(sets, 16), None
    if kind == "folder":
        options["checkpoint"] = "/proc/no/run.checkpoint"
    if kind == "full":  # the disk of the one who writes, after the first epoch
        options |= {"checkpoint": folder / "lost" / "run.checkpoint", "checkpoint_every": 1}
        (folder / "lost").mkdir(exist_ok=True)
        options["callbacks"] = [Away(folder / "lost")]
    if kind == "drift" and second:
        options["callbacks"] = [Drift()]
    if kind == "diverges":
        options |= {"lr": 1e200, "depth_lr_ratio": 0.0}
    net = model()
    if kind == "wrapped":
        net = nn.parallel.DistributedDataParallel(net)
    ub.fit(net, x, y, **options)


class Drift(Callback):
    """λ of one process goes its own way."""

    def on_fit_start(self, trainer):
        with torch.no_grad():
            trainer.model.depth.raw_rate.add_(0.01)


class Away(Callback):
    """The folder of the checkpoint is gone."""

    def __init__(self, folder):
        self.folder = folder

    def on_fit_start(self, trainer):
        if trainer.processes.is_first:
            self.folder.rmdir()


def faults(folder: Path) -> dict[str, str]:
    """Every kind one after another: all processes end each of them, and can go on."""
    told = {}
    for kind in KINDS:
        version = ub.__version__
        try:
            wrong(kind, folder)
        except Exception as error:
            told[kind] = f"{type(error).__name__}: {error}"
        ub.__version__ = version
    return told


def own_loop() -> dict:
    """Steps of a loop of one's own, each process with rows of its own choice."""
    net, (x, y) = model(), data(32)
    optimizer = ub.make_optimizer(net, lr=0.05, depth_lr_ratio=2.0)
    rank, size = parallel.rank(), parallel.current().size
    here = slice(0, 32) if size == 1 else (slice(0, 25), slice(25, 32))[rank]
    for _ in range(12):
        info = ub.step(net, optimizer, x[here], y[here], 32, clip=1.0)
    return {"loss": info.loss, "state": net.state_dict()}


def ends(folder: Path) -> list:
    """One process is asked to end: all do, after the same step, or with the epoch."""
    found = []
    for path in (None, folder / "asked.checkpoint"):
        net = model()
        options = {"callbacks": [Signal(signal.SIGTERM)], "checkpoint": path, "batch_size": 16}
        result = ub.fit(net, *data(), epochs=9, **options)
        norm = float(sum(p.detach().square().sum() for p in net.parameters()))
        found.append([result.stopped, len(result.history), norm])
    return found


def words(folder: Path) -> dict[str, str]:
    """What `fit` and the command line print."""
    with redirect_stderr(io.StringIO()) as bar:
        ub.fit(model(), *data(), epochs=2, batch_size=16, progress=True)
    table = folder / "table.csv"
    if parallel.rank() == 0:
        rows = (f"{a:.4f},{b:.4f},{c:.4f}" for a, b, c in data()[0])
        lines = [f"{row},{'yes' if k else 'no'}" for row, k in zip(rows, data()[1], strict=True)]
        table.write_text("\n".join(["a,b,c,k", *lines]) + "\n")
    parallel.current().gather(None)  # until it is there
    command = ["fit", str(table), "--target", "k", "--out", str(folder / "table.udn")]
    command += ["--epochs", "2", "--width", "6", "--device", "cpu"]
    command += ["--no-references", "--no-report"]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = [cli.main(command), cli.main([*command, "--drop", "z"]), cli.main(["demo"])]
    return {"bar": bar.getvalue(), "out": out.getvalue(), "err": err.getvalue(), "status": status}


def halves(folder: Path) -> dict:
    """A run in one go, and one that a checkpoint cuts in two."""
    whole = train("dropout")
    path = folder / "run.checkpoint"
    options = {"checkpoint": path, "resume": True}
    train("dropout", epochs=CUT, **options)
    torch.manual_seed(99)  # of no importance: the checkpoint has the state
    cut = train("dropout", **options)
    half = folder / "half.checkpoint"
    train("held_out", epochs=CUT, checkpoint=half)
    return {"whole": whole, "cut": cut, "loop": own_loop(), "batch_norm": train("batch_norm")}


def members(folder: Path | None = None, **changes) -> dict:
    """Three models at once, which processes divide among themselves."""
    models = [model(ub.TruncatedPoisson(rate)) for rate in (1.0, 1.5, 2.5)]
    options = {"epochs": 4, "batch_size": 16, "lr": [0.01, 0.02, 0.01], "seed": [1, 2, 3]}
    options |= {"validation": data(41, seed=1), "progress": False, **changes}
    results = ub.fit(models, *data(), **options)
    rows = [[{**row, "seconds": 0} for row in one.history] for one in results]
    best = [one.best_epoch for one in results]
    return {"rows": rows, "best": best, "states": [one.state_dict() for one in models]}


def few() -> list:
    """One model in a list, and an engine that does not divide rows: all processes end with it."""
    models = [model()]
    (result,) = ub.fit(models, *data(), epochs=2, batch_size=16, engine=Stacked(), progress=False)
    return [result.history[-1]["step"], models[0].state_dict()]


def from_disk(folder: Path) -> dict:
    """Rows on disk, of which each process reads its own: a run, one that is cut, and the rows."""
    if parallel.rank() == 0:
        x, y = data()
        np.save(folder / "x.npy", np.concatenate([np.arange(ROWS)[:, None], x[:, 1:]], 1))
        np.save(folder / "y.npy", y)
    parallel.current().gather(None)  # until they are there
    paths = folder / "x.npy", folder / "y.npy"
    rows = ub.DiskData.arrays(*paths, group_rows=7, window=3, epoch_rows=32)

    def trained(epochs: int, **options) -> dict:
        net = model()
        options |= {"validation": data(41, seed=1), "progress": False, "batch_size": 16}
        ub.fit(net, rows, epochs=epochs, lr=0.001, **options)
        return net.state_dict()

    whole = trained(5)
    trained(2, checkpoint=folder / "disk.checkpoint")
    cut = trained(5, checkpoint=folder / "disk.checkpoint", resume=True)
    bound = rows.bind(model(), 16, torch.Generator().manual_seed(1), parallel.current())
    own = [int(v) for _ in range(6) for b in bound._pass(list(range(13)), 5) for v in b.x[:, 0]]
    return {"whole": whole, "cut": cut, "rows": parallel.current().gather(own)}


def ensemble() -> np.ndarray:
    """Members of an estimator, which processes divide among themselves."""
    x, y = data()
    options = {"n_members": 2, "epochs": 2, "width": 6, "random_state": 0, "device": "cpu"}
    return ub.UDNClassifier(**options).fit(x.numpy(), y.numpy()).predict_proba(x.numpy())


def table() -> list:
    """A table that is learnt from on disk: what each process ends with."""
    x, y = data()
    columns = {name: x[:, place].numpy() for place, name in enumerate("abc")}
    frame = pd.DataFrame({**columns, "k": np.where(y == 1, "yes", "no")})
    options = {"epochs": 1, "width": 6, "references": False, "device": "cpu", "stream": True}
    predicted = ub.TableModel.fit(frame, "k", **options).predict(frame)
    return parallel.current().gather(predicted["p_yes"].tolist())


def apart(folder: Path) -> dict:
    """What is done with many models, and with rows on disk."""
    found = {"members": members(), "chunks": members(chunk=2), "disk": from_disk(folder)}
    found["few"] = few()
    found |= {"ensemble": torch.from_numpy(ensemble()), "table": table()}
    path = {"checkpoint": folder / "members.checkpoint"}
    members(**path, epochs=2)
    found["cut"] = members(**path, resume=True)
    told = {}
    for name, changes in (
        ("other", {"batch_size": 16 + parallel.rank()}),
        ("fails", {"weights": weights() if parallel.rank() == 0 else weights()[:-1]}),
    ):
        try:
            members(**changes)
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    (folder / f"apart.{parallel.rank()}.json").write_text(json.dumps(told))
    return found


def main(scenario: str, folder: Path) -> None:
    found: dict = {}
    if scenario in ("two", "four"):
        names = [name for name in OPTIONS if name not in OWN] if scenario == "two" else FOUR
        found = {name: train(name) for name in names}
    if scenario == "two":
        told = {"faults": faults(folder), "words": words(folder), "ends": ends(folder)}
        (folder / f"told.{parallel.rank()}.json").write_text(json.dumps(told))
        found |= halves(folder) | {"apart": apart(folder)}
    if scenario == "four":  # what one has begun
        found["rest"] = train("held_out", checkpoint=folder / "four.checkpoint", resume=True)
    if scenario == "elastic":
        options = {"checkpoint": folder / "run.checkpoint", "checkpoint_every": 1, "resume": True}
        found["plain"] = train("plain", callbacks=[Signal(signal.SIGKILL)], **options)
    if parallel.rank() == 0:
        torch.save(found, folder / f"{scenario}.pt")


SIZES = {"two": 2, "four": 4}
"""How many processes a scenario has; two by default."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(scenario: str, folder: Path) -> list[int]:
    """Become several, having imported all that takes long; in the first one, their numbers."""
    size, port = SIZES.get(scenario, 2), free_port()
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            given = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
            given |= {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
            os.environ.update({name: str(value) for name, value in given.items()})
            main(scenario, folder)
            sys.exit(0)
        children.append(child)
    return children


def ended(children: list[int]) -> list[int]:
    """Wait for processes; their exit statuses."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def fork(folder: Path, scenarios: list[str]) -> None:
    """One scenario after another in processes that all begin as this one; with 1 if one fails."""
    for scenario in scenarios:
        if any(ended(start(scenario, folder))):
            sys.exit(1)


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    folder, scenarios = Path(sys.argv[1]), sys.argv[2:]
    if "RANK" in os.environ:
        main(scenarios[0], folder)
    else:
        fork(folder, scenarios)
