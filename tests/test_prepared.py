"""Copies of fitted models that are kept for predictions: fast, and never out of date."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import make_friedman1

from unbounded import UDNRegressor
from unbounded.estimators import frames, prepared
from unbounded.estimators.prepared import Prepared
from unbounded.likelihoods import FixedNoise, Gaussian, InputNoise

SHORT = {"epochs": 3, "width": 8, "random_state": 0}


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(60, 6, random_state=0)


@pytest.fixture
def model(friedman):
    return UDNRegressor(**SHORT).fit(*friedman)


def test_a_copy_is_kept_while_the_model_stays(model, friedman, monkeypatch):
    X, _ = friedman
    first = model.predict(X)
    kept = Prepared.of(model.model_)
    monkeypatch.setattr(prepared.Prepared, "__init__", None)  # no other is made
    assert (model.predict(X) == first).all()
    assert model.predict(X[:1]) == pytest.approx(first[:1], rel=1e-12)
    assert Prepared.of(model.model_) is kept


def add_layer(network):
    network.heads["1"] = copy.deepcopy(network.heads["1"])
    with torch.no_grad():
        network.heads["1"].bias += 1


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.network.heads["1"].bias.detach().add_(1),
        lambda m: setattr(m.network.heads["1"].bias, "data", torch.tensor([5.0, 0.0])),
        lambda m: setattr(
            m.network.heads["1"], "bias", torch.nn.Parameter(torch.tensor([5.0, 0.0]))
        ),
        lambda m: add_layer(m.network),
        lambda m: m.network.heads["1"].register_forward_hook(lambda *given: given[2] + 1),
        lambda m: m.load_state_dict({k: v + 0.1 for k, v in m.state_dict().items()}),
        lambda m: m.double().network.heads["1"].bias.detach().add_(1),
    ],
    ids=["in place", "data", "parameter", "module", "hook", "state", "dtype"],
)
def test_a_changed_model_is_seen(model, friedman, change):
    X, _ = friedman
    before = model.predict(X)
    change(model.model_)
    after = model.predict(X)
    assert not np.allclose(before, after)
    assert copy.deepcopy(model).predict(X) == pytest.approx(after, rel=1e-12)


def test_the_noise_is_seen(model, friedman):
    X, _ = friedman
    _, before = model.predict(X, return_std=True)
    with torch.no_grad():
        model.model_.likelihood.noise.log_scale += 1
    assert (model.predict(X, return_std=True)[1] > 1.5 * before).all()


def test_further_training_is_seen(friedman):
    X, y = friedman
    model = UDNRegressor(**SHORT).partial_fit(X, y)
    before = model.predict(X)
    model.partial_fit(X, y)
    assert not np.allclose(before, model.predict(X))
    model.set_params(warm_start=True)
    before = model.predict(X)
    assert not np.allclose(before, model.fit(X, y).predict(X))


def test_predictions_within_a_callers_inference_mode(model, friedman):
    X, _ = friedman
    with torch.inference_mode():
        inside = model.predict(X)
    assert (model.predict(X) == inside).all()


def test_what_is_kept_goes_with_the_model(friedman):
    X, y = friedman
    model = UDNRegressor(**SHORT).fit(X, y)
    model.predict(X)
    kept = weakref.ref(Prepared.of(model.model_))
    assert "frozen" not in str(pickle.dumps(model))
    del model
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_as_expected_need_no_further_checks(model, friedman, kind, monkeypatch):
    X = friedman[0].astype(kind)
    slow = frames.validate_data
    expected = model.predict(X.tolist())
    monkeypatch.setattr(frames, "validate_data", None)
    assert model.predict(X) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(frames, "validate_data", slow)
    for bad, match in [
        (X[:, :5], "6 features"),
        (X[:0], "0 sample"),
        (X[0], "2D array"),
        (np.where(X > 0.9, np.inf, X).astype(kind), "infinite"),
    ]:
        with pytest.raises(ValueError, match=match):
            model.predict(bad)
    gaps = X.copy()
    gaps[0, 0] = np.nan
    assert np.isfinite(model.predict(gaps)).all()


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_frames_as_expected_need_no_further_checks(friedman, library, monkeypatch):
    X, y = friedman
    names = [f"c{i}" for i in range(6)]
    frame = library.DataFrame(dict(zip(names, X.T, strict=True)))
    model = UDNRegressor(**SHORT).fit(frame, y)
    slow = frames.validate_data
    monkeypatch.setattr(frames, "validate_data", None)
    found = model.predict(frame)
    monkeypatch.setattr(frames, "validate_data", slow)
    with pytest.warns(UserWarning, match="valid feature names"):
        assert model.predict(X) == pytest.approx(found, rel=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[::-1]])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[:5]])


@pytest.mark.parametrize(("noise", "name"), [(FixedNoise(), "scale"), (InputNoise(), "floor")])
def test_numbers_that_are_no_tensors_are_watched(friedman, noise, name):
    X, y = friedman
    model = UDNRegressor(**SHORT, likelihood=Gaussian(noise)).fit(X, y)
    _, before = model.predict(X, return_std=True)
    setattr(model.model_.likelihood.noise, name, 3.0)
    _, after = model.predict(X, return_std=True)
    assert (after > before + 0.5).all()
