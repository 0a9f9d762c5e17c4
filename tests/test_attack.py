"""The short form of `python -m benchmarks.attack`: a few cases of each attack."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def attack(out, *arguments):
    command = [sys.executable, "-m", "benchmarks.attack", "--workers", "1", "--out", str(out)]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
def test_no_promise_is_broken(tmp_path):
    status, words = attack(tmp_path / "found.json", "--scale", "0.002", "--seed", "7")
    assert status == 0, words
    found = json.loads((tmp_path / "found.json").read_text())
    names = " ".join(row["name"] for row in found["attacks"])
    for part in ("model files", "checkpoints", "replaced", "SIGKILL", "Ctrl-C", "tables", "labels"):
        assert part in names
    assert all(row["cases"] > 0 and row["broken"] == 0 for row in found["attacks"])


@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
def test_a_broken_promise_is_told(tmp_path):
    """With a reader that takes anything for the file it asked for, the attack goes red."""
    code = """
import sys
from unbounded.files import contents
contents.digest = lambda tensors, metadata: metadata.get("digest", "")
sys.argv = ["attack", "files", "--scale", "0.005", "--workers", "1"]
from benchmarks.attack.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "other numbers" in done.stdout + done.stderr
