"""Comparing recipes of the UCI study by validation rows alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from test_uci import TINY, small_set, write_set
from unbounded.depth import TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.experiments.uci import scores, study, tune
from unbounded.experiments.uci.models import FINITE, Variant, build
from unbounded.experiments.uci.recipe import training_rows

FAST = "rate=4,depth_lr_ratio=5"


def plan_of(*variants: str, splits=(1,), models=()) -> study.UCISettings:
    known = {words: tune.variant(words) for words in variants}
    return study.UCISettings("standard", splits, [*models, *variants], TINY, (0,), variants=known)


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
    assert all(math.isfinite(value) for row in rows for value in tune.score([row]).values())
    assert tune.candidates(poisoned, plan) == rows
    # The check can fail: a poisoned training row is seen.
    poisoned.y[training_rows(clean.test_masks[1])[0]] += 1
    assert tune.candidates(poisoned, plan) != rows


def held_out_rows(count: int = 31, seed: int = 0, noise: float = 1.0) -> scores.HeldOut:
    """Two depths: the second predicts 0 for targets around 0, the first predicts 2."""
    y = np.random.default_rng(seed).normal(size=count) * noise
    means = np.stack([np.full(count, 2.0), np.zeros(count)])
    return scores.HeldOut(scores.Mixture(np.array([0.25, 0.75]), means, np.ones((2, count))), y)


def test_what_is_scored_is_not_what_was_chosen_on():
    parts = [held_out_rows(31, 0), held_out_rows(20, 1, noise=3.0)]
    row = tune.scored(parts)
    assert [fold["count"] for fold in row["folds"]] == [11 + 7, 10 + 7, 10 + 6]
    for number, fold in enumerate(row["folds"]):
        inside = [np.arange(len(one.y)) % 3 == number for one in parts]
        others = [scores.HeldOut(_rows(o, ~i), o.y[~i]) for o, i in zip(parts, inside, strict=True)]
        factor, nll = scores.calibrate(others)
        assert fold["others"]["nll"] == pytest.approx(nll)
        errors = np.concatenate([one.y - 0.5 for one in others])  # the mean is 0.25 · 2
        assert fold["others"]["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        own = [(_rows(o, i).widened(factor), o.y[i]) for o, i in zip(parts, inside, strict=True)]
        squares = sum(np.sum((y - 0.5) ** 2) for _, y in own)
        assert fold["squares"] == pytest.approx(squares)
        total = sum(len(y) * scores.score(one, y)["nll"] for one, y in own)
        assert fold["nll"] == pytest.approx(total)
    everything = np.concatenate([one.y - 0.5 for one in parts])
    assert tune.score([row])["rmse"] == pytest.approx(np.sqrt(np.mean(everything**2)))
    alone = [np.sqrt(np.mean(one.y**2)) for one in parts]
    assert row["rmse_of_depths"][1] == pytest.approx(np.mean(alone))
    assert row["probs"] == pytest.approx([0.25, 0.75])
    assert row["depth_mean"] == pytest.approx(1.75)


def _rows(one: scores.HeldOut, rows: np.ndarray) -> scores.Mixture:
    found = one.predicted
    return scores.Mixture(found.probs, found.means[:, rows], found.scales[:, rows])


def test_a_depth_that_not_every_part_reaches():
    deep, shallow = held_out_rows(), held_out_rows(seed=1)
    one = scores.Mixture(np.ones(1), shallow.predicted.means[:1], shallow.predicted.scales[:1])
    row = tune.scored([deep, scores.HeldOut(one, shallow.y)])
    assert row["rmse_of_depths"][1] is None
    assert row["probs"] == pytest.approx([0.625, 0.375])
    assert tune.scored([scores.HeldOut(one, shallow.y)])["depth_mean"] is None  # one depth


def test_a_candidate_that_diverged_is_not_chosen():
    good, broken = held_out_rows(), held_out_rows()
    broken = broken._replace(predicted=broken.predicted.widened(math.nan))
    rows = [tune.scored([broken]), tune.scored([good])]
    assert tune.score(rows) == tune.score(rows[1:])
    assert tune.score(rows[:1]) == {"rmse": math.inf, "nll": math.inf}
    assert json.loads(json.dumps(rows)) == rows


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


def row_of(model: str, rmse: float, nll: float, split: int = 0, seen: float = 0.0) -> tune.Row:
    """A candidate with these scores in every fold; `seen` is its NLL and RMSE on other rows."""
    others = {"nll": seen, "rmse": -seen}
    fold = {"others": others, "squares": 4 * rmse**2, "nll": 4 * nll, "count": 4}
    place = {"set": "yacht", "split": split, "model": model}
    return {**place, "folds": [fold] * 3, "depth_mean": 2.0}


def test_the_comparison():
    rows = [row_of(name, 2.0 + i, 1.0, split) for i, name in enumerate(FINITE) for split in (0, 1)]
    rows += [row_of("udn", 3.0, 0.5, 0, seen=-1), row_of("udn", 1.0, 0.1, 0, seen=1)]
    rows += [
        row_of("udn", 5.0, 0.7, 1),
        row_of("slow", 2.0, 0.4, 0),
        row_of("slow", 2.0, 0.4, 1, -2),
    ]
    # The finite networks have 4 and 1. The first of the two candidates does better on other rows,
    # by NLL; the second by RMSE.
    table = [line.split() for line in tune.compare(rows, FINITE, ["udn", "slow"]).splitlines()[1:]]
    assert " ".join(table[0]) == "yacht 2 udn 1.000 ± 0.250 -0.400 ± 0.100 2.00"
    assert " ".join(table[1]) == "yacht 2 slow 0.500 ± 0.000 -0.600 ± 0.000 2.00"
    # udn in the first split, slow in the second.
    assert " ".join(table[2]) == "yacht 2 best of the variants 0.625 ± 0.125 -0.550 ± 0.050"
    by_rmse = tune.compare(rows, FINITE, ["udn"], "rmse").splitlines()[1].split()
    assert by_rmse[3:6] == ["0.750", "±", "0.500"]
    against = tune.compare(rows, ["slow"], ["udn"]).splitlines()[1].split()
    assert against[3] == "2.000"
    one = [row for row in rows if row["split"] == 0 and row["model"] != "f4"]
    assert len(tune.compare(one, FINITE, ["udn"]).splitlines()) == 1  # nothing to compare with


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
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 2 + len(FINITE)
    assert tune.BEST in said.out
    rows = json.loads(path.read_text())["rows"]
    assert rows[: len(first)] == first
    assert {row["split"] for row in rows[len(first) :] if row["model"] == "udn"} == {2}
    assert {row["split"] for row in rows if row["model"] == "rate=2"} == {0, 2}
    monkeypatch.setattr(study, "validate", None)
    assert tune.main([*common, "--splits", "2", "--variants", "udn", "--select", "rmse"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "deep"], "'deep' is no variant: expected udn"),
        (["--variants", "rate=-1,"], "'rate=-1,' is no variant"),
        (["--models", "f9"], "--models must be of f2"),
        (["--datasets", "mars"], "there is no set 'mars'"),
        (["--splits", "-1"], "--splits must be a number"),
        (["--steps", "0"], "steps must be positive"),
        (["--out", "kept.json", "--steps", "9"], "was made with another recipe"),
    ],
)
def test_mistakes(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text('{"recipe": {}, "rows": []}')
    with pytest.raises(SystemExit):
        tune.main(arguments)
    assert words in capsys.readouterr().err
