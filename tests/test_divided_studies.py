"""Studies under torchrun: processes divide the networks, and the files are those of one."""

import json

import pytest
import torch

import studied
from test_processes import run

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)
TIMES = ("seconds", "total", "selection", "training", "scoring", "capture_seconds")


def timeless(value):
    """Plain data without what a clock said."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def files(folder) -> dict:
    """The numbers that a study has written, by file."""
    found = {path.name: json.loads(path.read_text()) for path in folder.rglob("*.json")}
    assert found
    return timeless(found)


def test_two_processes_write_what_one_does(tmp_path, monkeypatch):
    alone, both = tmp_path / "alone", tmp_path / "both"
    both.mkdir()
    run("studied.py", both)
    first, second = (json.loads((both / f"told.{rank}.json").read_text()) for rank in range(2))
    with monkeypatch.context() as context:
        for module, name in studied.REPLACED:  # to be put back behind this
            context.setattr(module, name, None)
        studied.prepare(alone)
        for name in studied.STUDIES:
            assert (first[name][0], second[name][0]) == (0, 0), first[name]
            assert studied.study(name, alone)[0] == 0
            assert files(alone / name) == files(both / name), name
            assert (both / name / "table.md").is_file()
            assert not (both / name / "parts").exists()
            # One of them tells of the whole, each of what it has trained.
            assert "wrote" in first[name][1] or "runs are in" in first[name][1]
            assert "wrote" not in second[name][1]
            assert "runs are in" not in second[name][1]
    assert first["images"] + second["images"]
    assert not set(first["images"]) & set(second["images"])
    for told in (first, second):
        assert told["jobs"][0] == told["failed"][0] == 2
        assert "leave it to torchrun" in told["jobs"][2]
        assert "the disk is gone" in told["failed"][2]
        assert told["failed"][2].count("\n") == 1
        assert told["resumed"][0] == 0
    assert sum("of 2: the disk is gone" in told["failed"][2] for told in (first, second)) == 1
    assert files(alone / "sequences") == files(both / "again" / "sequences")
