"""The README's code runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

from unbounded.data import cifar10
from unbounded.data.images import Images

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def few_images():
    """Something of CIFAR-10's kind, small."""
    x = np.random.default_rng(0).integers(256, size=(32, 16, 16, 3), dtype=np.uint8)
    part = Images(x, np.arange(32) % 10, cifar10.CLASSES)
    return cifar10.CIFAR10(part, part)


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    """In order and in one namespace, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= 2
    assert len(BLOCKS[0].strip().splitlines()) <= 15
    namespace: dict[str, object] = {}
    exec(compile(BLOCKS[0], "README, first block", "exec"), namespace)
    printed = capsys.readouterr().out
    probs = [float(p) for p in re.findall(r"q\(\d+\) = ([\d.]+)", printed)]
    assert len(probs) >= 4
    assert sum(probs) == pytest.approx(1, abs=0.01)
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) > 0.95
    monkeypatch.setattr(cifar10, "load", few_images)
    for index, block in enumerate(BLOCKS[1:], start=2):
        block = block.replace("epochs=50", "epochs=1, batch_size=16")  # of images, for time's sake
        exec(compile(block, f"README, block {index}", "exec"), namespace)
