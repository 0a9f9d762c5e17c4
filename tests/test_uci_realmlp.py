"""RealMLP-TD beside the models of the UCI study: optional."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from test_uci import TINY, result_of, small_set
from unbounded import metrics
from unbounded.experiments.uci import realmlp, study, table
from unbounded.experiments.uci.models import REALMLP, TABLES
from unbounded.experiments.uci.recipe import rounding

PLAN = study.UCISettings("standard", (1,), (REALMLP,), TINY, (0,))


class Line:
    """A line with the surface of RealMLP-TD's regressor."""

    made: list["Line"]

    def __init__(self, random_state, **options):
        assert options == {"n_threads": 1, "device": "cpu", "verbosity": 0}
        self.seed = random_state
        self.made.append(self)

    def fit(self, x, y, X_val, y_val):
        self.parts = [part.copy() for part in (x, y, X_val, y_val)]
        self.weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
        return self

    def predict(self, x):
        return np.c_[x, np.ones(len(x))] @ self.weights


@pytest.fixture
def line(monkeypatch):
    """Stands for RealMLP-TD."""
    kind = type("Line", (Line,), {"made": []})
    monkeypatch.setitem(sys.modules, "pytabkit", SimpleNamespace(RealMLP_TD_Regressor=kind))
    return kind


def test_a_package_that_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytabkit", None)  # an import of it fails
    assert "unbounded[rivals]" in realmlp.missing()


def test_no_test_row_reaches_the_model_or_its_noise(line):
    clean = small_set()
    test = clean.test_masks[1]
    poisoned = replace(clean, x=clean.x.copy(), y=clean.y.copy())
    poisoned.x[test], poisoned.y[test] = np.nan, 1e30
    scales = [realmlp.fit(data, PLAN, 1, 5).scale for data in (clean, poisoned)]
    assert scales[0] == scales[1]
    one, other = line.made
    assert one.seed == other.seed == 5
    for a, b in zip(one.parts, other.parts, strict=True):
        assert np.array_equal(a, b)
    x, y, held_x, held_y = one.parts
    assert (len(x), len(held_x)) == (65, 16)
    assert not set(y) & set(held_y)


def test_its_noise_is_the_error_on_the_rows_that_it_holds_out(line):
    data = small_set()
    found = realmlp.fit(data, PLAN, 1, 0)
    _, _, held_x, held_y = line.made[0].parts
    error = np.sqrt(np.mean((held_y - line.made[0].predict(held_x)) ** 2))
    test = data.test_masks[1]
    assert found.scale == pytest.approx(max(error, rounding(data.y[~test])))
    row = realmlp.score(data, PLAN, 1, found)
    means = line.made[0].predict(data.x[test].astype(np.float32))
    assert row["rmse"] == pytest.approx(metrics.rmse(data.y[test], means))
    scale = np.full_like(means, found.scale)[None]
    nll = metrics.mixture_nll(data.y[test], np.ones(1), means[None], scale)
    assert row["nll"] == pytest.approx(nll)
    assert (row["model"], row["split"]) == (REALMLP, 1)


def test_the_table_compares_it_with_the_estimator():
    found = table.verdicts({"yacht": result_of({TABLES: [0.4, 0.41], REALMLP: [0.3, 0.31]})})
    assert found["UDNRegressor as good as RealMLP-TD, RMSE"] == {"yacht": False}
    assert found["RealMLP-TD as good as UDNRegressor, RMSE"] == {"yacht": True}


def test_with_the_package_itself():
    pytest.importorskip("pytabkit", reason="needs the extra unbounded[rivals]")
    data = small_set()
    row = realmlp.score(data, PLAN, 1, realmlp.fit(data, PLAN, 1, 0))
    assert row["rmse"] < 0.6 * data.y.std()
