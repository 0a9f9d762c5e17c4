"""CatBoost beside the models of the UCI study: optional, and with the help that networks have."""

import argparse
import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from test_uci import TINY, reproduce, result_of, resumed_study, small_set, write_set
from unbounded import metrics
from unbounded.experiments.uci import add_arguments, boosted, make_plan, study, table
from unbounded.experiments.uci.models import ALONE, CATBOOST, LABELS, TABLES
from unbounded.experiments.uci.recipe import rounding, validation_parts

PLAN = study.UCISettings("standard", (1,), (CATBOOST,), TINY, (0,))


class Line:
    """A regressor with CatBoost's surface: a line; of the other loss also scales, and it is off."""

    made: list["Line"]
    scales = staticmethod(lambda x: np.exp(2 * np.sin(1e3 * x[:, 0])))  # of any size

    def __init__(self, loss_function, random_seed, **options):
        assert options == {"thread_count": 1, "verbose": 0, "allow_writing_files": False}
        self.loss, self.seed = loss_function, random_seed
        self.made.append(self)

    def fit(self, x, y):
        self.x, self.y = x.copy(), y.copy()
        self.weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
        return self

    def predict(self, x):
        mean = np.c_[x, np.ones(len(x))] @ self.weights
        return np.c_[mean + 0.1, self.scales(x) ** 2] if "Uncertainty" in self.loss else mean


@pytest.fixture
def line(monkeypatch):
    """Stands for CatBoost."""
    kind = type("Line", (Line,), {"made": []})
    module = SimpleNamespace(CatBoostRegressor=kind, __version__="0.0")
    monkeypatch.setitem(sys.modules, "catboost", module)
    return kind


def noisy_set():
    """A set whose noise is ten times as large where the first input is positive."""
    data = small_set(rows=400)
    draw = np.random.default_rng(3)
    spread = np.where(data.x[:, 0] > 0, 3.0, 0.3)
    return replace(data, y=2 * data.x[:, 0] + spread * draw.normal(size=len(spread)))


def test_a_package_that_is_missing_is_told_and_skipped(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "catboost", None)  # an import of it fails
    assert "unbounded[rivals]" in boosted.missing()
    write_set(tmp_path, small_set())
    out = tmp_path / "out"
    common = ["--data", str(tmp_path), "--out", str(out), "--datasets", "yacht", "--quick"]
    common += ["--splits", "2", "--steps", "20", "--width", "6"]
    assert reproduce(*common, "--models", "catboost") == 0
    said = capsys.readouterr().out
    assert said.startswith("catboost is skipped: ")
    assert "pip install 'unbounded[rivals]'" in said
    assert not out.exists()
    assert reproduce(*common, "--models", "f2,catboost") == 0
    assert "catboost is skipped: " in capsys.readouterr().out
    found = json.loads((out / "yacht.json").read_text())
    assert found["configuration"]["models"] == ["f2"]
    assert {row["model"] for row in found["rows"]} == {"f2"}


def test_it_is_run_only_if_named(line):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = make_plan(parser.parse_args([])).models
    assert set(LABELS) - set(usual) == set(ALONE)
    assert PLAN.networks == PLAN.singles == []
    assert PLAN.alone == [CATBOOST]


def test_its_rows_are_added_to_those_of_networks(tmp_path, line, capsys):
    path, common = resumed_study(tmp_path)
    assert reproduce(*common, "--models", "f2,udn") == 0
    before = json.loads(path.read_text())
    assert reproduce(*common, "--models", "catboost") == 0
    after = json.loads(path.read_text())
    assert after["configuration"]["models"] == ["udn", "f2", "catboost"]
    assert [row for row in after["rows"] if row["model"] != "catboost"] == before["rows"]
    assert after["added"][0]["versions"]["catboost"] == "0.0"
    mine = [row for row in after["rows"] if row["model"] == "catboost"]
    assert [row["split"] for row in mine] == [0, 1]
    assert all(math.isfinite(row[key]) for row in mine for key in ("rmse", "nll", "crps"))
    assert "| CatBoost |" in (path.parent / "table.md").read_text()


def test_no_test_row_reaches_a_model_or_a_choice(line):
    clean = small_set()
    test = clean.test_masks[1]
    poisoned = replace(clean, x=clean.x.copy(), y=clean.y.copy())
    poisoned.x[test], poisoned.y[test] = np.nan, 1e30
    one, other = (boosted.fit(data, PLAN, 1, 5) for data in (clean, poisoned))
    assert replace(one, models=None) == replace(other, models=None)
    half = len(line.made) // 2
    for a, b in zip(line.made[:half], line.made[half:], strict=True):
        assert (a.loss, a.seed) == (b.loss, b.seed)
        assert a.seed == 5
        assert np.array_equal(a.x, b.x)
        assert np.array_equal(a.y, b.y)
    # Two validation parts with two losses each, and then all training rows.
    assert [len(model.y) for model in line.made[:4]] == [65] * 4
    assert [len(model.y) for model in line.made[4:half]] == [81] * (half - 4)


def test_the_density_with_the_better_validation_likelihood_is_taken(line):
    data = noisy_set()
    found = boosted.fit(data, PLAN, 1, 0)
    assert found.density == "constant"  # scales that say nothing, and a mean that is off
    assert found.models.uncertain is None  # nothing is fitted in vain
    line.scales = staticmethod(lambda x: np.where(x[:, 0] > 0, 3.0, 0.3))
    found = boosted.fit(data, PLAN, 1, 0)
    assert found.density == "both"
    assert found.candidates["both"] == min(found.candidates.values())
    assert found.candidates["both"] < found.candidates["constant"] - 0.3
    assert set(found.candidates) == set(boosted.DENSITIES)


def test_the_constant_is_the_error_on_held_out_rows(line):
    data = small_set()
    found = boosted.fit(data, PLAN, 1, 0)
    test = data.test_masks[1]
    errors = []
    for train, held in validation_parts(np.flatnonzero(~test), TINY, 1):
        x = np.c_[data.x[train], np.ones(len(train))]
        weights = np.linalg.lstsq(x, data.y[train], rcond=None)[0]
        errors += (data.y[held] - np.c_[data.x[held], np.ones(len(held))] @ weights).tolist()
    assert found.constant == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    factor = found.factors["constant"]
    assert factor == pytest.approx(1, abs=0.01)
    row = boosted.score(data, PLAN, 1, found)
    mean = found.models.usual.predict(data.x[test])[0]
    scale = np.full_like(mean, max(found.constant * factor, rounding(data.y[~test])))
    y = data.y[test]
    assert row["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert row["nll"] == pytest.approx(metrics.mixture_nll(y, np.ones(1), mean[None], scale[None]))
    assert row["validation_nll"] == row["candidates"]["constant"]
    assert row["nll"] == row["nll_constant"]


def test_the_rmse_is_that_of_the_usual_loss(line):
    data = noisy_set()
    line.scales = staticmethod(lambda x: np.where(x[:, 0] > 0, 3.0, 0.3))
    found = replace(boosted.fit(data, PLAN, 1, 0), density="uncertainty")
    test = data.test_masks[1]
    row = boosted.score(data, PLAN, 1, found)
    mean, _ = found.models.usual.predict(data.x[test])
    other, scales = found.models.uncertain.predict(data.x[test])
    assert row["rmse"] == metrics.rmse(data.y[test], mean) != metrics.rmse(data.y[test], other)
    wide = np.maximum(scales * found.factors["uncertainty"], rounding(data.y[~test]))
    nll = metrics.mixture_nll(data.y[test], np.ones(1), other[None], wide[None])
    assert row["nll"] == pytest.approx(nll)
    scale = np.full_like(mean, found.constant * found.factors["constant"])
    nll = metrics.mixture_nll(data.y[test], np.ones(1), mean[None], scale[None])
    assert row["nll_constant"] == pytest.approx(nll)


def test_the_table_compares_it_with_the_estimator():
    near = result_of({"udn": [0.5, 0.6], TABLES: [0.4, 0.5], CATBOOST: [0.42, 0.52]})
    far = result_of({"udn": [0.5, 0.6], TABLES: [0.4, 0.5], CATBOOST: [0.2, 0.22]})
    for result in (near, far):
        for row in result["rows"]:
            if row["model"] == CATBOOST:
                del row["depth_mean"]
                row["nll_constant"] = -1.0 if result is near else 1.0
    found = table.verdicts({"yacht": near, "boston": far})
    assert found["UDNRegressor as good as CatBoost, RMSE"] == {"yacht": True, "boston": False}
    assert found["CatBoost as good as UDNRegressor, RMSE"] == {"yacht": True, "boston": True}
    # The better of its two kinds of noise: −1 and 0, where all others have 0.
    assert found["UDNRegressor as good as CatBoost, NLL"] == {"yacht": False, "boston": True}
    text = table.markdown({"yacht": near, "boston": far})
    assert "| CatBoost | CatBoost, one σ | PBP |" in text
    assert "| UDNRegressor as good as CatBoost, RMSE | 1 of 2 | boston |" in text
    assert f"| {LABELS[CATBOOST]} |" in text


def test_with_the_package_itself():
    pytest.importorskip("catboost", reason="needs the extra unbounded[rivals]")
    data = small_set()
    found = boosted.fit(data, PLAN, 1, 0)
    row = boosted.score(data, PLAN, 1, found)
    assert row["rmse"] < 0.6 * data.y.std()
    assert row["nll"] < 0.5 * math.log(2 * math.pi * math.e * data.y.var())
    assert row["density"] in boosted.DENSITIES
