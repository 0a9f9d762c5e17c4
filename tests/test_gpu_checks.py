"""The checks that a GPU deserves run on a CPU too, and can fail; on a GPU they run in full."""

import pytest
import torch

from gpu import imagecheck, selfcheck


def test_many_models(monkeypatch, capsys):
    monkeypatch.setattr(selfcheck, "_EPOCHS", 1)
    monkeypatch.setattr(selfcheck, "_time", lambda *arguments: None)
    assert selfcheck.main(["--device", "cpu"]) == 0
    assert "all checks passed" in capsys.readouterr().out
    monkeypatch.setattr(selfcheck, "_gap", lambda ones, others: 2.0)
    cpu = torch.device("cpu")
    assert not selfcheck._compare("two", lambda: selfcheck._shared(torch.float64), cpu)
    assert "FAIL two" in capsys.readouterr().out


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", [selfcheck, imagecheck])
def test_on_this_gpu(check):
    assert check.main([]) == 0
