"""Comparing recipes of the UCI study by validation rows alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from test_uci import TINY, small_set, write_set
from unbounded.depth import TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.experiments.uci import study, tune
from unbounded.experiments.uci.models import FINITE, Variant, build
from unbounded.experiments.uci.recipe import training_rows

FAST = "rate=4,depth_lr_ratio=5"


def plan_of(*variants: str, splits=(1,), models=()) -> study.Plan:
    known = {words: tune.variant(words) for words in variants}
    return study.Plan("standard", splits, [*models, *variants], TINY, (0,), variants=known)


def test_a_variant_from_words():
    assert tune.variant("udn") == Variant()
    assert tune.variant("concentration=3,rate=4") == Variant(concentration=3.0, rate=4.0)
    for wrong in ("udn2", "width=3", "rate=fast", ""):
        with pytest.raises(ValueError, match=r"is no variant|could not convert"):
            tune.variant(wrong)
    words = "concentration=3,rate=4,prior_rate=2"
    model = build(words, 3, 0.5, TINY, 0, {words: tune.variant(words)})
    assert isinstance(model.depth, TruncatedConwayMaxwell)
    assert model.depth.rate == pytest.approx(4)
    assert model.depth_prior.config() == {"rate": 2.0}
    usual = build("udn", 3, 0.5, TINY, 0)
    assert isinstance(usual.depth, TruncatedPoisson)
    assert usual.depth.rate == pytest.approx(TINY.rate)


def test_no_test_row_is_seen():
    """Poisoned test rows: the same scores, to the last bit."""
    clean = small_set()
    poisoned = replace(clean, x=clean.x.copy(), y=clean.y.copy())
    poisoned.x[clean.test_masks[1]] = np.nan
    poisoned.y[clean.test_masks[1]] = 1e30
    plan = plan_of("udn", "concentration=3", models=("f2",))
    rows = tune.candidates(clean, plan)
    assert len(rows) == 3 * len(TINY.scales)
    assert all(math.isfinite(row[k]) for row in rows for k in ("rmse", "nll", "factor"))
    assert tune.candidates(poisoned, plan) == rows
    # The check can fail: a poisoned training row is seen.
    poisoned.y[training_rows(clean.test_masks[1])[0]] += 1
    assert tune.candidates(poisoned, plan) != rows


def test_scores_are_those_of_the_selection():
    """The NLL by which the study chooses, the RMSE of the mixture's mean and of each depth."""
    data, plan = small_set(), plan_of("udn", models=("f2",))
    rows = {(row["model"], row["scale"]): row for row in tune.candidates(data, plan)}
    choices = study.choose(data, plan, say=lambda words: None)
    for name in ("udn", "f2"):
        for scale, nll in choices[1, name].candidates.items():
            assert rows[name, float(scale)]["nll"] == nll
    (best,) = tune.selected([row for key, row in rows.items() if key[0] == "udn"])
    assert best["scale"] == choices[1, "udn"].scale
    held_out = study.validate(data, plan)[1, "udn", 0.3]
    errors = [one.y - one.predicted.probs @ one.predicted.means for one in held_out]
    row = rows["udn", 0.3]
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    assert sum(row["probs"]) == pytest.approx(1)
    first = [np.sqrt(np.mean((one.y - one.predicted.means[0]) ** 2)) for one in held_out]
    assert row["rmse_of_depths"][0] == pytest.approx(np.mean(first))
    assert rows["f2", 0.3]["rmse_of_depths"] == [
        pytest.approx(np.mean([np.sqrt(np.mean((h.y - h.predicted.means[0]) ** 2)) for h in two]))
        for two in [study.validate(data, plan)[1, "f2", 0.3]]
    ]
    assert rows["f2", 0.3]["depth_mean"] is None


def test_each_member_has_the_rates_of_its_variant():
    """Two variants in one population: each is as it is alone, and they differ."""
    data = small_set()
    both = tune.candidates(data, plan_of("udn", FAST))
    alone = tune.candidates(data, plan_of(FAST))
    found = [row for row in both if row["model"] == FAST]
    assert [row["depth_mean"] for row in found] == pytest.approx(
        [row["depth_mean"] for row in alone], rel=1e-5
    )
    slow = tune.candidates(data, plan_of("rate=4,depth_lr_ratio=0"))
    start = TruncatedPoisson(4.0).mean()
    assert all(row["depth_mean"] == pytest.approx(start, abs=1e-5) for row in slow)
    assert all(abs(row["depth_mean"] - start) > 0.1 for row in alone)


def rows_of(model: str, rmse: float, nll: float, split: int = 0, scale: float = 1.0) -> tune.Row:
    return {
        "set": "yacht",
        "split": split,
        "model": model,
        "scale": scale,
        "rmse": rmse,
        "nll": nll,
        "depth_mean": 2.0,
    }


def test_the_comparison():
    rows = [rows_of(name, 2.0 + i, 1.0, split) for i, name in enumerate(FINITE) for split in (0, 1)]
    rows += [rows_of("udn", 3.0, 0.5), rows_of("udn", 2.0, 0.9, scale=0.2)]
    rows += [rows_of("udn", 5.0, 0.7, 1), rows_of("udn", 1.0, math.nan, 1, 0.2)]
    # The finite mean is 4 and 1: by NLL the ratios are 3/4 and 5/4, by RMSE 2/4 and 1/4.
    assert [row["rmse"] for row in tune.selected(rows)[-2:]] == [3.0, 5.0]
    by_nll = tune.compare(rows).splitlines()[1].split()
    assert by_nll == ["yacht", "2", "udn", "1.000", "±", "0.250", "-0.400", "±", "0.100", "2.00"]
    by_rmse = tune.compare(rows, "rmse").splitlines()[1].split()
    assert by_rmse[3] == "0.375"
    one = [row for row in rows if row["split"] == 0 and row["model"] != "f4"]
    assert len(tune.compare(one).splitlines()) == 1  # without all of f2 … f6 nothing to compare


def test_the_command_trains_what_is_missing(tmp_path, capsys, monkeypatch):
    write_set(tmp_path, small_set())
    path = tmp_path / "kept.json"
    common = ["--data", str(tmp_path), "--out", str(path), "--steps", "10", "--scales", "0.3"]
    assert tune.main([*common, "--splits", "2", "--variants", "udn"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[:3] == ["yacht", "2", "udn"]
    assert len(said.err.splitlines()) == 1 + len(FINITE)
    first = json.loads(path.read_text())["rows"]
    assert tune.main([*common, "--splits", "0,2", "--variants", "udn", "rate=2"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 2 + len(FINITE)
    rows = json.loads(path.read_text())["rows"]
    assert rows[: len(first)] == first
    assert {row["split"] for row in rows[len(first) :] if row["model"] == "udn"} == {2}
    assert {row["split"] for row in rows if row["model"] == "rate=2"} == {0, 2}
    monkeypatch.setattr(study, "validate", None)
    assert tune.main([*common, "--splits", "2", "--select", "rmse"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "deep"], "'deep' is no variant: expected udn"),
        (["--out", "kept.json", "--steps", "9"], "was made with another recipe"),
    ],
)
def test_mistakes(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text('{"recipe": {}, "rows": []}')
    with pytest.raises(SystemExit):
        tune.main(arguments)
    assert words in capsys.readouterr().err
