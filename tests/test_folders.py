"""Folders as hubs have them: what goes in comes out, and what does not fit together is refused."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_friedman1

import unbounded as ub
from helpers import classes, classifier
from unbounded import UDNRegressor
from unbounded.files import FileError
from unbounded.tables import TableModel

SHORT = {"epochs": 2, "width": 8}


@pytest.fixture
def folder(tmp_path):
    ub.save_folder(classifier(), tmp_path / "model")
    return tmp_path / "model"


def test_a_network(folder):
    x, _ = classes(5)
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    torch.testing.assert_close(
        ub.load_folder(folder).predict(x).probs, classifier().predict(x).probs
    )
    torch.testing.assert_close(
        ub.load(folder / "model.safetensors").predict(x).probs, classifier().predict(x).probs
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["layers"]["kind"] == "Dense"
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: unbounded\n")
    q = classifier().depth_log_probs().exp()
    assert f"| 1 | {q[0]:.3f} |" in card


def test_an_estimator_and_a_table(tmp_path):
    X, y = make_friedman1(60, 5, random_state=0)
    model = UDNRegressor(**SHORT, random_state=0).fit(X, y)
    ub.save_folder(model, tmp_path / "rows")
    again = ub.load_folder(tmp_path / "rows")
    assert isinstance(again, UDNRegressor)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    card = (tmp_path / "rows" / "README.md").read_text()
    assert "pipeline_tag: tabular-regression" in card
    assert "A `UDNRegressor`: predicts a number from 5 columns." in card
    frame = pd.DataFrame(X, columns=["a|b", *"cdef"]).assign(target=y)
    table = TableModel.fit(frame, target="target", references=False, **SHORT)
    ub.save_folder(table, tmp_path / "table")
    found = ub.load_folder(tmp_path / "table")
    assert isinstance(found, TableModel)
    pd.testing.assert_frame_equal(found.predict(frame), table.predict(frame))
    card = (tmp_path / "table" / "README.md").read_text()
    assert "pipeline_tag: tabular-regression" in card
    assert r"`a\|b`" in card
    assert "| rmse |" in card


def test_parts_of_ones_own(tmp_path):
    layers = ub.CustomLayers(
        lambda depth: torch.nn.Linear(3 if depth == 1 else 4, 4),
        lambda depth: torch.nn.Linear(4, 2),
    )
    model = ub.UDN(layers, ub.Categorical(2), ub.FixedDepth(2))
    ub.save_folder(model, tmp_path / "own", card="mine\n")
    assert (tmp_path / "own" / "README.md").read_text() == "mine\n"
    with pytest.raises(FileError, match="layers of the user's own"):
        ub.load_folder(tmp_path / "own")
    x, _ = classes(5)
    found = ub.load_folder(tmp_path / "own", layers=layers)
    torch.testing.assert_close(found.predict(x).probs, model.predict(x).probs)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("config.json", lambda data: data.replace(b'"seed": 0', b'"seed": 1'), "differ in 'seed'"),
        ("config.json", lambda data: b"{}", "no format is named"),
        ("config.json", lambda data: b"[" * 100, "not JSON"),
        ("config.json", lambda data: b"[" * (1 << 21), "more than"),
        ("config.json", lambda data: b" " * (1 << 26), "larger than"),
        ("config.json", lambda data: None, "has no config.json"),
        (
            "model.safetensors",
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            "does not fit|do not fit",
        ),
        ("model.safetensors", lambda data: data[:50], "not a complete safetensors"),
    ],
)
def test_what_does_not_belong_together_is_refused(folder, name, change, said):
    data = change((folder / name).read_bytes())
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    with pytest.raises(FileError, match=said):
        ub.load_folder(folder)


def test_the_weights_of_another_model(folder, tmp_path):
    other = ub.UDN(ub.Dense(3, 9, 2), ub.Categorical(2))
    ub.save(other, folder / "model.safetensors")
    with pytest.raises(FileError, match=r"does not belong to model.safetensors: they differ in"):
        ub.load_folder(folder)


def test_places_that_cannot_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ub.save_folder(classifier(), tmp_path / "no" / "where")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="a folder was expected"):
        ub.save_folder(classifier(), tmp_path / "file")
    with pytest.raises(FileError, match="is no folder"):
        ub.load_folder(tmp_path / "file")
    with pytest.raises(TypeError, match="got int"):
        ub.save_folder(3, tmp_path / "model")
    assert not list((tmp_path / "model").iterdir()) if (tmp_path / "model").exists() else True
