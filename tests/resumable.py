"""Runs of `fit`, each in a process of its own, which may kill itself: resumable.py OPTIONS ….

Prints the exit status of each, and whether it has left a result.
"""

import json
import os
import random
import signal
import sys

import numpy as np
import torch
from torch import nn

import unbounded as ub
from unbounded.data import spiral
from unbounded.training import Callback


class Kill(Callback):
    """kill −9 after an epoch: no clean-up of any kind runs."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, trainer, row):
        if row["epoch"] == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def hidden(depth):
    # Dropout draws from the global generator, so that its state matters too.
    return nn.Sequential(nn.Linear(2 if depth == 1 else 12, 12), nn.ReLU(), nn.Dropout(0.1))


def build(options):
    layers = ub.Dense(2, 12, 2)
    if options["dropout"]:
        layers = ub.CustomLayers(hidden, lambda depth: nn.Linear(12, 2))
    return ub.UDN(
        layers,
        ub.Categorical(2),
        ub.TruncatedPoisson(options["rate"]),
        ub.PoissonDepth(options["prior"]),
        seed=5,
    )


def main(options):
    # Whatever the process's own random state is, the checkpoint's has to win.
    salt = options["salt"]
    torch.manual_seed(salt)
    if not options["resume"]:
        torch.manual_seed(11)
        np.random.seed(11)  # noqa: NPY002
        random.seed(11)
    model = build(options)
    optimizer = None
    if options["optimizer"] != "Adam":
        kind = getattr(torch.optim, options["optimizer"])
        optimizer = ub.make_optimizer(
            model, kind, lr=options["lr"], depth_lr_ratio=options["ratio"]
        )
    result = ub.fit(
        model,
        *spiral(6.0, 256),
        validation=spiral(6.0, 256, part="validation"),
        epochs=options["epochs"],
        batch_size=64,
        lr=options["lr"],
        depth_lr_ratio=options["ratio"],
        optimizer=optimizer,
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, [g["lr"] for g in o.param_groups], total_steps=60
        ),
        schedule_every="step",
        drop_inactive=options["drop"],
        checkpoint=options["checkpoint"],
        checkpoint_every=1,
        resume=options["resume"],
        callbacks=[Kill(options["kill"])] if options["kill"] else [],
        progress=False,
    )
    ub.files.write_tensors(options["out"], model.state_dict(), {})
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    with open(options["out"] + ".json", "w") as file:
        json.dump([rows, result.history.births, result.best_epoch, torch.rand(3).tolist()], file)


def fork(options):
    """The run in a child, which has all imports from its first moment."""
    child = os.fork()
    if child == 0:
        main(options)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [status, os.path.exists(options["out"])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # imports much
    print(json.dumps([fork(json.loads(options)) for options in sys.argv[1:]]))
