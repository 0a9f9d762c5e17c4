"""Checkpoints: 10 epochs = 4 epochs + kill −9 + resume + 6 epochs, bit for bit."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded.depth import TruncatedPoisson
from unbounded.files import FileError
from unbounded.training import Callback

SCRIPT = Path(__file__).with_name("resumable.py")
DEFAULTS = {
    "rate": 1.0,
    "prior": 1e8,  # pulls the depth up, whatever the data say
    "optimizer": "Adam",
    "lr": 0.02,
    "ratio": 10.0,
    "drop": False,
    "dropout": False,
    "epochs": 10,
    "kill": None,
    "resume": False,
    "salt": 1,
}


def run(*runs):
    """The exit status of each, and whether it has left a result."""
    options = [json.dumps({**DEFAULTS, **one}) for one in runs]
    done = subprocess.run([sys.executable, SCRIPT, *options], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": True},
        {"rate": 4.0, "prior": 0.5, "drop": True, "optimizer": "NAdam"},
    ],
    ids=["grows", "dropout", "drops-nadam"],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, options):
    whole, part = str(tmp_path / "whole"), str(tmp_path / "part")
    cut = {**options, "checkpoint": part + ".ckpt", "out": part}
    ended = run(
        {**options, "checkpoint": whole + ".ckpt", "out": whole},
        {**cut, "kill": 4},
        {**cut, "resume": True, "salt": 77},
    )
    assert ended == [[0, True], [-signal.SIGKILL, False], [0, True]]
    one, other = load_file(whole), load_file(part)
    assert same(one, other)
    assert json.loads(Path(whole + ".json").read_text()) == json.loads(
        Path(part + ".json").read_text()
    )
    rows, births, *_ = json.loads(Path(whole + ".json").read_text())
    depths = [row["num_layers"] for row in rows]
    assert depths[3] != depths[-1], "the depth has to change after the interruption"
    assert births or options.get("drop")


def test_a_checkpoint_resumes_at_any_depth(tmp_path):
    """A fresh model of other depth takes the checkpoint's layers, weights and optimiser state."""
    x, y = classes(64)
    path = tmp_path / "run.ckpt"
    model = classifier(TruncatedPoisson(3.0))
    ub.fit(model, x, y, epochs=2, batch_size=16, checkpoint=path, progress=False)
    other = classifier(TruncatedPoisson(0.3))
    assert other.network.num_layers < model.network.num_layers
    result = ub.fit(
        other, x, y, epochs=2, batch_size=16, checkpoint=path, resume=True, progress=False
    )
    assert same(state(model), state(other))
    assert len(result.history) == 2
    assert len(result.optimizer.state) == len(list(other.parameters()))


def test_the_file_is_replaced_in_one_move(tmp_path, monkeypatch):
    """If writing fails, the old checkpoint is still whole and nothing else lies about."""
    x, y = classes(64)
    path = tmp_path / "run.ckpt"
    ub.fit(classifier(), x, y, epochs=1, batch_size=16, checkpoint=path, progress=False)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        ub.fit(
            classifier(),
            x,
            y,
            epochs=2,
            batch_size=16,
            checkpoint=path,
            resume=True,
            progress=False,
        )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_last_epoch_is_always_written(tmp_path):
    path = tmp_path / "run.ckpt"
    ub.fit(
        classifier(),
        *classes(64),
        epochs=3,
        batch_size=16,
        checkpoint=path,
        checkpoint_every=100,
        progress=False,
    )
    written = []

    class Watch(Callback):
        def on_fit_start(self, trainer):
            written.append(trainer.epoch)

    ub.fit(
        classifier(),
        *classes(64),
        epochs=3,
        batch_size=16,
        checkpoint=path,
        resume=True,
        callbacks=[Watch()],
        progress=False,
    )
    assert written == [3]


def test_refusals(tmp_path):
    x, y = classes(64)
    path = tmp_path / "run.ckpt"
    options = {"epochs": 1, "batch_size": 16, "checkpoint": path, "progress": False}
    ub.fit(classifier(), x, y, **options)
    model = classifier()
    optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1)
    with pytest.raises(FileError, match=r"optimizer was 'Adam', is \{'kind': 'SGD'"):
        ub.fit(model, x, y, resume=True, optimizer=optimizer, **options)
    with pytest.raises(FileError, match="written with Adam, training now uses SGD"):
        ub.fit(model, x, y, resume=True, optimizer=optimizer, resume_despite="optimizer", **options)
    with pytest.raises(FileError, match=r"layers.width was \d+, is 9"):
        ub.fit(classifier(width=9), x, y, resume=True, **options)
    whole = path.read_bytes()
    tensors, metadata = ub.files.read_tensors(path)
    tensors["engine.0.model.network.hidden.1000000000.weight"] = torch.zeros(1)
    ub.files.write_tensors(path, tensors, metadata)
    with pytest.raises(FileError, match=r"claims \d+ layers and names 1000000000"):
        ub.fit(classifier(), x, y, resume=True, **options)
    path.write_bytes(whole[:200])
    with pytest.raises(FileError, match="not a complete safetensors file"):
        ub.fit(classifier(), x, y, resume=True, **options)
    ub.save(classifier(), path)
    with pytest.raises(FileError, match="has the format 'unbounded-model-2'"):
        ub.fit(classifier(), x, y, resume=True, **options)
