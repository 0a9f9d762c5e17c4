"""Training in several processes is training in one: the same depths, weights, scores, errors."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import several
from several import FOUR, KINDS, OPTIONS, OWN, free_port
from unbounded import parallel
from unbounded.parallel import ALONE, ProcessError
from unbounded.parallel.rows import own_rows
from unbounded.parallel.start import meet
from unbounded.training.agreement import check_places
from unbounded.training.shared import check_parts, deal

HERE = Path(__file__).parent
SRC = HERE.parent / "src"

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)


def environment(**more: object) -> dict[str, str]:
    paths = [str(SRC), str(HERE), os.environ.get("PYTHONPATH", "")]
    found = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "MASTER"))}
    found |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return found | {name: str(value) for name, value in more.items()}


def variables(size: int, timeout: float = 60) -> dict[str, str]:
    """What Slurm or torchrun would set, but for the number of each process."""
    known = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "UNBOUNDED_TIMEOUT": timeout}
    return environment(**known, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())


def run(program: str, folder: Path, *scenarios: str) -> None:
    """All processes of some scenarios, one after another, to their end.

    One start for all of them: that takes longer than what they do.
    """
    command = [sys.executable, str(HERE / program), str(folder), *scenarios]
    given = environment(UNBOUNDED_TIMEOUT=60)
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = subprocess.run(command, env=given, timeout=600, **options)
    assert ended.returncode == 0, ended.stdout


def apart(one: object, other: object, where: str = "") -> float:
    """The largest difference of two results, whose structure has to be the same."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        return max((apart(one[k], other[k], f"{where}.{k}") for k in one), default=0.0)
    if isinstance(one, list):
        assert len(one) == len(other), where
        pairs = enumerate(zip(one, other, strict=True))
        return max((apart(a, b, f"{where}[{n}]") for n, (a, b) in pairs), default=0.0)
    if isinstance(one, torch.Tensor):
        return float((one - other).abs().max()) if one.numel() else 0.0
    if isinstance(one, float):
        return abs(one - other) / max(1.0, abs(one))
    assert one == other, where
    return 0.0


def check_all(found: dict, names: Iterable[str]) -> None:
    for name in names:
        alone = several.train(name)
        assert all(len(births) >= 3 for births in alone["births"]), name
        depths = [row["max_depth"] for row in alone["rows"][0]]
        assert any(b < a for a, b in pairwise(depths)), name
        assert apart(alone, found[name], name) <= 1e-10


def check_words(first: dict, second: dict) -> None:
    """One bar, one report; an error in each."""
    assert "2/2" in first["bar"]
    assert second["bar"] == second["out"] == ""
    assert "depth  q(ℓ)" in first["out"]
    for one in (first, second):
        assert one["status"] == [0, 2, 2]
        assert "table.csv has no column 'z'" in one["err"]
        assert "unbounded: error: unbounded demo runs in one process" in one["err"]


def check_two(folder: Path) -> None:
    found = torch.load(folder / "two.pt", weights_only=False)
    check_all(found, OPTIONS.keys() - set(OWN))
    assert apart(found["whole"], found["cut"]) == 0  # bit for bit
    assert apart(several.own_loop(), found["loop"]) <= 1e-10
    told = [json.loads((folder / f"told.{rank}.json").read_text()) for rank in range(2)]
    for one in told:
        assert one["faults"].keys() == KINDS.keys()
        for kind, words in KINDS.items():
            assert words in one["faults"][kind], kind
            assert "\n" not in one["faults"][kind]
    assert not list(folder.glob("lost/*"))
    check_words(*(one["words"] for one in told))
    assert told[0]["ends"] == told[1]["ends"]
    assert [end[:2] for end in told[0]["ends"]] == [["interrupted", 2], ["interrupted", 3]]
    assert (folder / "asked.checkpoint").exists()
    assert (folder / "table.udn").exists()
    alone = several.train("batch_norm")
    pairs = zip(alone["rows"][0], found["batch_norm"]["rows"][0], strict=True)
    assert all(abs(a["val_log_score"] - b["val_log_score"]) < 0.1 for a, b in pairs)
    # A run of two goes on alone.
    half = folder / "half.checkpoint"
    rest = several.train("held_out", checkpoint=half, resume=True)
    assert apart(several.train("held_out"), rest) <= 1e-10


def check_four(folder: Path) -> None:
    found = torch.load(folder / "four.pt", weights_only=False)
    check_all(found, FOUR)
    assert apart(several.train("held_out"), found["rest"]) <= 1e-10  # one has begun it


def check_divided(folder: Path) -> None:
    """Three models among two processes are those of one process; rows come once.

    Bit for bit where the same ones train together: sums of a stack are rounded by who is in it.
    """
    found = torch.load(folder / "two.pt", weights_only=False)["apart"]
    alone = several.members()
    assert apart(several.members(chunk=2), found["chunks"]) == 0
    assert apart(alone, found["members"]) <= 1e-10
    assert apart(alone, found["cut"]) <= 1e-10
    assert apart(several.few(), found["few"]) == 0
    assert {p.name for p in folder.glob("members*")} == {
        "members-1of2.checkpoint",
        "members-2of2.checkpoint",
    }
    assert apart(torch.from_numpy(several.ensemble()), found["ensemble"]) <= 1e-6
    assert found["table"][0] == found["table"][1]
    disk = found["disk"]
    assert apart(disk["whole"], disk["cut"]) == 0
    first, second = (rows[: len(rows) // 6] for rows in disk["rows"])
    assert sorted(first + second) == list(range(several.ROWS))
    told = [json.loads((folder / f"apart.{rank}.json").read_text()) for rank in range(2)]
    for one in told:
        assert "batch_size is 16 in process 0, 17 in process 1" in one["other"]
    assert "process 1 of 2: training data: weights must have shape (90,)" in told[0]["fails"]
    assert "weights must have shape (90,)" in told[1]["fails"]
    with pytest.raises(ValueError, match=r"members-1of2\.checkpoint is of a run that divided"):
        check_parts(folder / "members.checkpoint", 3)


def test_two_and_four_processes(tmp_path):
    """All of it in one test: to start processes takes longer than what they do."""
    several.train("held_out", epochs=several.CUT, checkpoint=tmp_path / "four.checkpoint")
    run("several.py", tmp_path, "two", "four")
    check_two(tmp_path)
    check_four(tmp_path)
    check_divided(tmp_path)


def test_a_killed_process_is_started_again(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]
    ended = subprocess.run(
        [*command, str(HERE / "several.py"), str(tmp_path), "elastic"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "exitcode: -9" in ended.stderr, ended.stderr  # one was killed
    found = torch.load(tmp_path / "elastic.pt", weights_only=False)
    assert apart(several.train("plain"), found["plain"]) <= 1e-10


def test_a_peer_that_does_not_come(monkeypatch):
    """The one who is there waits no longer than it may, and says so."""
    for name, value in {**variables(2, timeout=1), "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    with pytest.raises(ProcessError, match=r"process 0 of 2 cannot reach the others: .*in time"):
        parallel.current()
    assert time.monotonic() - start < 20
    assert not torch.distributed.is_initialized()


def test_those_who_are_here_now_meet():
    """The store holds what an earlier attempt left behind, of which the first answers last."""
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(4) as pool:
        words = set()
        for _ in range(3):
            found = [pool.submit(meet, store, rank, 4, 20.0) for rank in (3, 2, 1)]
            time.sleep(0.1)
            found.append(pool.submit(meet, store, 0, 4, 20.0))
            assert len({one.result() for one in found}) == 1
            words.add(found[0].result())
    assert len(words) == 3
    with pytest.raises(RuntimeError, match="process 0 did not answer within"):
        meet(store, 1, 2, 0.1)
    with pytest.raises(RuntimeError, match=r"processes 1, 2 did not come within 0\.1 seconds"):
        meet(store, 0, 3, 0.1)


def test_rows_are_shared_out():
    for size in (1, 2, 3, 4, 7):
        for rows in (1, 2, 5, 16, 29):
            parts = [own_rows(rows, rank, size) for rank in range(size)]
            taken = [i for part, share in parts if share for i in range(rows)[part]]
            assert taken == list(range(rows))
            assert sum(share for _, share in parts) == pytest.approx(1, abs=1e-15)
            assert all(len(range(rows)[part]) for part, _ in parts)


def test_devices_go_together():
    both = [("a", "cuda:0"), ("b", "cuda:0"), ("a", "cuda:1"), ("a", "cuda:0")]
    check_places(both[:3], True)
    check_places(both, False)
    with pytest.raises(ProcessError, match="processes 0 and 3 both train on cuda:0: give each"):
        check_places(both, True)
    with pytest.raises(ProcessError, match="process 0 trains on cuda:0, process 1 on cpu: all"):
        check_places([both[0], ("a", "cpu")], False)


def test_alone_nothing_is_asked(monkeypatch):
    assert parallel.current() is ALONE
    assert parallel.rank() == 0
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert parallel.current() is ALONE
    for name, value in {"WORLD_SIZE": 2, "RANK": 1, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert parallel.rank() == 1
    with parallel.alone():
        assert parallel.current() is ALONE
        assert parallel.rank() == 0
    monkeypatch.setenv("UNBOUNDED_TIMEOUT", "soon")
    with pytest.raises(ProcessError, match="UNBOUNDED_TIMEOUT must be a number"):
        parallel.current()


def test_models_are_dealt_in_the_chunks_of_one_process():
    assert deal([[2, 0], [1, 3], [4]], 2) == [[2, 0], [1, 3], [4]]
    assert deal([[2, 0], [1, 3], [4]], 3) == [[2, 0], [1, 3], [4]]
    assert deal([[0, 1, 2, 3, 4]], 2) == [[0, 2, 4], [1, 3]]
    assert deal([[2, 0], [1]], 4) == [[2], [0], [1]]  # one goes without
