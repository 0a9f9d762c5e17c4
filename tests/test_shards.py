"""Layers in shards: the results of one process, in a part of its memory."""

import json
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

import sharded
from test_processes import HERE, apart, environment, variables
from unbounded.network import WHOLE
from unbounded.schema import FileError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)


def run(given: dict[str, str], scenario: str, folder) -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "sharded.py"), scenario, str(folder)]
    return subprocess.run(
        command, env=given, timeout=240, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def check_runs(found: dict, names) -> None:
    for name in names:
        alone = sharded.run(name, False)
        assert len(alone["births"][0]) >= 3, name
        depths = [row["max_depth"] for row in alone["rows"][0]]
        assert any(b < a for a, b in pairwise(depths)), name
        assert apart(alone, found[name], name) <= 1e-10


def check_damage(path, options) -> None:
    """A byte that flipped, a file that is gone: a line that begins with the path."""
    (folder,) = path.parent.glob("run.checkpoint.*.shards")
    file = sorted(folder.iterdir())[1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileError, match=r"run.checkpoint: the file .* is damaged"):
        sharded.run("rate", True, checkpoint=path, **options)
    file.unlink()
    with pytest.raises(FileError, match=r"run.checkpoint: its folder .* does not hold the 2 files"):
        sharded.run("rate", True, checkpoint=path, **options)


def test_two_and_four_processes(tmp_path):
    ended = run(variables(2), "two", tmp_path)
    assert ended.returncode == 0, ended.stdout
    found = torch.load(tmp_path / "two.pt", weights_only=False)
    check_runs(found, sharded.RUNS)
    for own, whole, moments in found["bytes"]:
        assert moments == 2  # Adam's
        assert own <= 0.6 * whole
    assert apart(sharded.noisy(False), found["noisy"]) <= 1e-10
    (tmp_path / "alone").mkdir()
    assert apart(sharded.used(tmp_path / "alone"), found["used"]) <= 1e-10
    assert found["sampled"] == [4, 1]
    for name in ("loaders", "batch_norm"):
        assert apart(getattr(sharded, name)(), found[name], name) <= 1e-10
    # Checkpoints: bit for bit with the same number, whatever a writer that failed has left.
    assert apart(found["whole"], found["cut"]) == 0
    assert found["folders"] == [1, False]
    assert "no space left" in found["failed"]
    for rank in range(2):
        told = json.loads((tmp_path / f"told.{rank}.json").read_text())
        assert told.keys() == sharded.REFUSED.keys()
        for kind, words in sharded.REFUSED.items():
            assert words in told[kind], kind
            assert "\n" not in told[kind]
    # A run of two goes on in four processes, one of one too; and one of two alone.
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=lambda *_: ["copy", "alone"])
    options = {"micro_batches": 1, "resume": True}
    rest = sharded.run("rate", True, checkpoint=tmp_path / "copy/half.checkpoint", **options)
    assert apart(found["whole"], rest) <= 1e-10
    assert not list(tmp_path.glob("copy/half.checkpoint.*.shards"))  # it wrote one file
    check_damage(tmp_path / "run.checkpoint", options)
    sharded.run("rate", True, epochs=3, checkpoint=tmp_path / "alone.checkpoint", **options)
    ended = run(variables(4), "four", tmp_path)
    assert ended.returncode == 0, ended.stdout
    four = torch.load(tmp_path / "four.pt", weights_only=False)
    check_runs(four, sharded.FOUR)
    for name in ("half", "alone"):
        assert apart(found["whole"], four[name]) <= 1e-10


@pytest.mark.parametrize("scenario", ["hang", "hang_shards"])
def test_a_peer_that_hangs(tmp_path, scenario):
    ended = run(variables(2, timeout=5), scenario, tmp_path)
    assert ended.returncode == 1
    words, seconds = json.loads((tmp_path / "hang.json").read_text())
    assert words.count("process 0 of 2 cannot reach the others") == 1, words
    assert words.startswith("ProcessError: ")
    assert "\n" not in words
    assert seconds < 15


def test_a_killed_process_is_started_again(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "2", "--monitor-interval", "0.1"]
    ended = subprocess.run(
        [*command, str(HERE / "sharded.py"), "elastic", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "-9" in ended.stderr  # one was killed
    found = torch.load(tmp_path / "elastic.pt", weights_only=False)
    assert apart(sharded.elastic_run(False), found["plain"]) <= 1e-10


def test_alone_nothing_is_spread():
    model = sharded.several.model()
    assert model.network.placement is WHOLE
    result = sharded.ub.fit(model, *sharded.data(), epochs=1, batch_size=45, shard=True)
    assert result.stopped == "epochs"
    assert model.network.placement.is_whole
    assert not any(sharded.parallel.shards.is_sharded(p) for p in model.parameters())
