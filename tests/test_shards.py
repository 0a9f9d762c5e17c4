"""Layers in shards: the results of one process, in a part of its memory."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import sharded
from test_processes import apart, run
from unbounded.network import WHOLE
from unbounded.schema import FileError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)


def check_runs(found: dict, names) -> None:
    for name in names:
        alone = sharded.run(name, False)
        assert len(alone["births"][0]) >= 3, name
        depths = [row["max_depth"] for row in alone["rows"][0]]
        assert any(b < a for a, b in pairwise(depths)), name
        assert apart(alone, found[name], name) <= 1e-10


def check_damage(path) -> None:
    """A byte that flipped, a file that is gone: a line that begins with the path."""
    (folder,) = path.parent.glob("run.checkpoint.*.shards")
    file = sorted(folder.iterdir())[1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"run.checkpoint: the file .* is damaged"):
        sharded.run("rate", True, checkpoint=path, resume=True)
    file.unlink()
    with pytest.raises(FileError, match=r"run.checkpoint: its folder .* does not hold the 2 files"):
        sharded.run("rate", True, checkpoint=path, resume=True)


def check_alive(folder: Path) -> None:
    found = torch.load(folder / "two.pt", weights_only=False)
    check_runs(found, sharded.RUNS)
    for own, whole, moments in found["bytes"]:
        assert moments == 2  # Adam's
        assert own <= 0.6 * whole
    assert apart(sharded.noisy(False), found["noisy"]) <= 1e-10
    (folder / "alone").mkdir()
    assert apart(sharded.used(folder / "alone"), found["used"]) <= 1e-10
    assert found["sampled"] == [4, 1]
    for name in ("loaders", "batch_norm"):
        assert apart(getattr(sharded, name)(), found[name], name) <= 1e-10
    # Checkpoints: bit for bit with the same number, whatever a writer that failed has left.
    assert apart(found["rate"], found["cut"]) == 0
    assert apart(found["rate"], found["alone"]) <= 1e-10  # one process began it
    assert found["folders"] == [1, False]
    assert "no space left" in found["failed"]
    for rank in range(2):
        told = json.loads((folder / f"told.{rank}.json").read_text())
        assert told.keys() == sharded.REFUSED.keys()
        for kind, words in sharded.REFUSED.items():
            assert words in told[kind], kind
            assert "\n" not in told[kind]
    # A run of two goes on alone, and in four processes.
    rest = sharded.run("rate", True, checkpoint=folder / "one/run.checkpoint", resume=True)
    assert apart(found["rate"], rest) <= 1e-10
    assert not list(folder.glob("one/run.checkpoint.*.shards"))  # it wrote one file
    check_damage(folder / "run.checkpoint")
    four = torch.load(folder / "four.pt", weights_only=False)
    check_runs(four, ["clip"])
    assert apart(found["rate"], four["half"]) <= 1e-10


def check_lost(folder: Path) -> None:
    """One hangs, with and without shards; one is killed, and the run goes on when it is back."""
    statuses = json.loads((folder / "statuses.json").read_text())
    assert statuses == {name: [1, -9] for name in sharded.LOST}
    for name in sharded.LOST:
        words, seconds = json.loads((folder / f"{name}.json").read_text())
        assert words.count("process 0 of 2 cannot reach the others") == 1, words
        assert words.startswith("ProcessError: ")
        assert "\n" not in words
        assert seconds < 15
    found = torch.load(folder / "killed.pt", weights_only=False)
    assert apart(sharded.train("plain", **sharded.several.SHORT), found) <= 1e-10


def test_processes_with_parts_of_the_layers(tmp_path):
    """Two processes and then four, all alive; two of which one is lost."""
    begun = {"epochs": sharded.several.CUT, "checkpoint": tmp_path / "alone.checkpoint"}
    sharded.run("rate", True, **begun)
    run("sharded.py", tmp_path, "two", "four")
    check_alive(tmp_path)
    check_lost(tmp_path)


def test_alone_nothing_is_spread():
    model = sharded.several.model()
    assert model.network.placement is WHOLE
    result = sharded.ub.fit(model, *sharded.data(), epochs=1, batch_size=45, shard=True)
    assert result.stopped == "epochs"
    assert model.network.placement.is_whole
    assert not any(sharded.parallel.shards.is_sharded(p) for p in model.parameters())
