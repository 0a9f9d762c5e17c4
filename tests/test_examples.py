"""The examples run: one model, many models, a file; each part in at most 30 lines."""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"
PARTS = {
    "own_family": ("Bell",),
    "own_likelihood": ("Laplace",),
    "own_layers": ("PreNormBlock", "PreNorm"),
    "on_a_trunk": ("OnATrunk",),
}
OTHERS = {"text_model"}  # tests of their own


def module_of(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where `inspect` looks for its source
    spec.loader.exec_module(module)
    return module


def test_every_example_is_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PARTS) | OTHERS


@pytest.mark.parametrize("name", PARTS)
def test_example(name, tmp_path):
    module = module_of(name)
    *models, loaded = module.run(epochs=2, path=str(tmp_path / "model.udn"))
    assert len(models) == 3
    before, after = models[0].state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    lines = sum(len(inspect.getsource(getattr(module, part)).splitlines()) for part in PARTS[name])
    assert lines <= 30


def test_text_model(capsys):
    module = module_of("text_model")
    model, data = module.run(module.SAMPLE[:1200], epochs=2)
    assert "bits a character" in capsys.readouterr().out
    assert model.layers.vocabulary == len(data.alphabet)
    assert len((FOLDER / "text_model.py").read_text().splitlines()) <= 60


def test_the_parts_pass_their_contract_suites():
    from unbounded import testing

    testing.check_family(module_of("own_family").Bell)
    y = torch.linspace(-2, 2, 24).sin()
    testing.check_likelihood(module_of("own_likelihood").Laplace, y)
    make = module_of("own_layers").PreNorm
    testing.check_layers(lambda: make(2, 8, 2), torch.randn(24, 2))
