"""The depth suite: its problems, its verdicts, and a small run from the command to the page."""

import argparse
import dataclasses
import json
import math
import shutil
import sys
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import unbounded as ub
from unbounded.data import tent
from unbounded.data.tents import folded
from unbounded.experiments import STUDIES, StudyError, depth, figures, records
from unbounded.experiments.depth import figures as drawings
from unbounded.experiments.depth import recipe, runs, table, verdicts
from unbounded.experiments.depth.problems import PROBLEMS, Problem, chosen
from unbounded.experiments.depth.recipe import Run, Settings, settings_of

NO_DATA = "uci"  # the group that is read from files


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    depth.add_arguments(parser)
    return parser.parse_args(words)


# Tent maps


@pytest.mark.parametrize("folds", [1, 2, 3, 6])
def test_tents_have_their_closed_form(folds):
    x = np.linspace(0, 1, 4001)
    closed = 1 - np.abs(2 * np.mod(2 ** (folds - 1) * x, 1) - 1)
    assert np.allclose(folded(x, folds), closed, atol=1e-9)
    points, y = tent(folds, 4000, flips=0.0)
    x = points[:, 0].double().numpy()
    place = np.mod(2 ** (folds - 1) * x, 1)
    sure = np.abs(np.abs(place - 0.5) - 0.25) > 1e-4  # single precision rounds the others
    assert (y.numpy() == (np.abs(place - 0.5) < 0.25))[sure].all()
    along = y[points[:, 0].argsort()]
    assert int((along.diff() != 0).sum()) == 2**folds


def test_a_share_of_the_labels_is_wrong_in_each_part():
    for part in ("train", "validation", "test"):
        x, noisy = tent(2, 4000, part=part, seed=3)
        same, clean = tent(2, 4000, part=part, seed=3, flips=0.0)
        assert torch.equal(x, same)
        assert float((noisy != clean).double().mean()) == pytest.approx(0.05, abs=0.012)


def test_tents_refuse_what_makes_no_sense():
    with pytest.raises(ValueError, match="folds must be an integer of at least 1"):
        tent(0)
    with pytest.raises(ValueError, match="part must be one of"):
        tent(1, part="all")
    with pytest.raises(ValueError, match=r"flips must be from 0 to 0\.5"):
        tent(1, flips=0.7)


def test_enough_narrow_layers_can_be_a_tent_map():
    # Two ReLUs fold the line once: T(x) = 2 relu(x) − 4 relu(x − ½), so `folds` layers do it.
    x = torch.linspace(0, 1, 101, dtype=torch.float64)
    h = x
    for _ in range(3):
        h = 2 * torch.relu(h) - 4 * torch.relu(h - 0.5)
    assert torch.allclose(h, torch.from_numpy(folded(x.numpy(), 3)))


# Problems


def test_the_suite_has_its_problems():
    groups = {g: [p for p in PROBLEMS.values() if p.group == g] for g in ("spirals", "tents")}
    assert [p.name for p in groups["spirals"]] == [f"spiral-{w}" for w in range(2, 31, 4)]
    assert [p.needed for p in groups["tents"]] == [1, 2, 3, 4, 5, 6]
    assert len(chosen(["uci"])) == 9
    assert len(chosen(["sklearn"])) == 5
    assert chosen([]) == list(PROBLEMS.values())
    assert [p.name for p in chosen(["tent-2", "spiral-6"])] == ["spiral-6", "tent-2"]
    development = {p.name for p in PROBLEMS.values() if p.role == "development"}
    assert development == {
        *(f"spiral-{w}" for w in (2, 10, 18, 26)),
        *("tent-1", "tent-3", "tent-5", "sklearn-diabetes", "sklearn-digits"),
        *(f"uci-{name}" for name in ("boston", "concrete", "wine", "kin8nm")),
    }
    with pytest.raises(StudyError, match="there is no 'spiral-3'; there are the groups spirals"):
        chosen(["spiral-3"])


@pytest.mark.parametrize(
    "problem", [p for p in PROBLEMS.values() if p.group != NO_DATA], ids=lambda p: p.name
)
def test_parts_are_disjoint_standardised_and_of_one_shape(problem: Problem):
    parts = problem.data(0)
    pairs = (parts.train, parts.validation, parts.test)
    other = problem.data(1)
    for x, y in pairs:
        assert x.dtype == torch.float32
        assert x.shape[1] == parts.train[0].shape[1]
        assert y.dtype == (torch.int64 if problem.task == "classes" else torch.float32)
        assert y.shape == ((len(x),) if problem.task == "classes" else (len(x), 1))
    assert parts.train[0].shape == other.train[0].shape  # seeds train together
    assert not torch.equal(parts.train[0], other.train[0])
    assert all(map(torch.equal, parts.train, problem.data(0).train))
    if problem.task == "classes":
        assert set(parts.train[1].tolist()) == set(range(problem.outputs))
    if problem.group != "spirals":
        x = parts.train[0].double()
        assert float(x.mean(0).abs().max()) < 0.1
        assert bool(((x.std(0, correction=0) - 1).abs() < 0.1)[x.std(0) > 0].all())
    if problem.group == "sklearn":
        from sklearn import datasets

        name = problem.name.removeprefix("sklearn-").replace("-", "_")
        count = len(getattr(datasets, f"load_{name}")().target)
        assert sum(len(y) for _, y in pairs) == count  # each row once
    else:
        rows = torch.cat([x for x, _ in pairs])
        assert len(torch.unique(rows, dim=0)) == len(rows)


def small_uci(folder, rows=60, splits=20):
    """A file as those of the UCI sets are."""
    random = np.random.default_rng(0)
    x = random.normal(5.0, 2.0, (rows, 3))
    masks = np.zeros((splits, rows), dtype=bool)
    for mask in masks:
        mask[random.choice(rows, rows // 10, replace=False)] = True
    bits = np.packbits(masks, axis=1)
    y = 100 * x[:, 0] + np.arange(rows)
    np.savez(folder / "yacht.npz", X=x, y=y, test_masks=bits, gap_test_masks=bits)
    return y, masks


def test_uci_problems_follow_the_splits(tmp_path):
    y, masks = small_uci(tmp_path)
    parts = PROBLEMS["uci-yacht"].data(7, tmp_path)
    sizes = [len(pair[1]) for pair in (parts.train, parts.validation, parts.test)]
    assert sizes == [44, 10, 6]
    train = float(parts.train[1].mean())
    assert train == pytest.approx(0, abs=1e-5)
    # Back in the target's units the test rows are those of split 7.
    test = np.diff(parts.test[1][:, 0].double().numpy()) * parts.scale
    assert np.allclose(test, np.diff(y[masks[7]]), atol=1e-2)


def test_large_tables_are_cut_but_for_their_test_rows(tmp_path, monkeypatch):
    small_uci(tmp_path)
    from unbounded.experiments.depth import problems

    problems._loaded.cache_clear()
    monkeypatch.setattr(problems, "MOST_ROWS", 20)
    parts = PROBLEMS["uci-yacht"].data(0, tmp_path)
    assert [len(p[1]) for p in (parts.train, parts.validation, parts.test)] == [16, 4, 6]


# The recipe


def test_settings_come_from_options():
    assert settings_of(options()) == Settings()
    found = settings_of(options("--seeds", "0-2", "--depths", "1,2", "5", "--starts", "1", "8"))
    assert (found.seeds, found.depths, found.starts) == ((0, 1, 2), (1, 2, 5), (1.0, 8.0))
    assert settings_of(options()).lengths == (1, 3, 4)
    assert settings_of(options("--no-long")).lengths == (1,)
    assert settings_of(options("--quick")).lengths == (1, 2)
    assert settings_of(options("--quick", "--seeds", "4")).seeds == (4,)
    assert Settings().start == 4.0
    for words, why in (
        (("--depths", "0-3"), "--depths must be numbers of at least 1"),
        (("--seeds", "x"), "'x' is no number and no range"),
        (("--depths", "3-1"), "--depths must be"),
        (("--made-epochs", "0"), "--made-epochs must be at least 1"),
    ):
        with pytest.raises(StudyError, match=why):
            settings_of(options(*words))


def test_populations_hold_every_run_once():
    settings = Settings(seeds=(0, 1), depths=(1, 3), starts=(1.0, 4.0, 16.0))
    found = runs.populations(chosen(["spirals", "sklearn-wine"]), settings)
    names = [f"spirals-{kind}" for kind in ("fixed", "udn", "long", "dun")]
    names += [f"sklearn-wine-{kind}" for kind in ("fixed", "udn", "spent", "long", "dun")]
    assert [p.name for p in found] == names
    sizes = {p.name: len(p.runs) for p in found}
    assert sizes["spirals-fixed"] == 8 * 2 * 2
    assert sizes["spirals-udn"] == 8 * 2 * 2  # the start in the middle is on its longer way
    assert sizes["sklearn-wine-udn"] == 3 * 2
    assert sizes["spirals-long"] == sizes["spirals-dun"] == 8 * 2
    every = [run for p in found for run in p.runs]
    assert len(set(every)) == len(every)
    lengths = {p.kind: {run.length for run in p.runs} for p in found}
    assert lengths == {"fixed": {1}, "udn": {1}, "spent": {3}, "long": {4}, "dun": {1}}
    names = [p.name for p in runs.populations(chosen(["tents"]), Settings(long=1))]
    assert names == ["tents-fixed", "tents-udn", "tents-dun"]
    protein = recipe.runs_of(PROBLEMS["uci-protein"], "dun", Settings(seeds=(3, 4, 5)))
    assert [run.seed for run in protein] == [3, 4]  # it has five splits


def test_networks_differ_in_their_depth_alone():
    settings, parts = Settings(), PROBLEMS["spiral-2"].data(0)
    fixed, udn, dun = (
        recipe.build(Run("spiral-2", *rest), parts, settings)
        for rest in (
            ("fixed", 5, None, 1, 0),
            ("udn", None, 16.0, 1, 0),
            ("dun", None, None, 1, 0),
        )
    )
    for model in (fixed, udn, dun):
        assert type(model.layers) is ub.PreNormDense
        assert (model.layers.in_features, model.layers.width) == (2, 32)
        assert model.layers.init == "he"
    assert fixed.support() == (5, 5)
    assert (udn.depth.place, udn.depth.spread) == (16.0, pytest.approx(8.0))
    assert dun.support() == (1, 16)
    assert dun.layers.shares_head
    usual, longer = (
        recipe.fitting(PROBLEMS["tent-1"], Run("tent-1", "udn", None, 4.0, n, 0), 1024, settings)
        for n in (1, 4)
    )
    assert longer["epochs"] == 4 * usual["epochs"]
    assert usual["schedule"] is longer["schedule"] is None
    assert usual["lr"] == longer["lr"] == settings.tent_lr
    table = recipe.fitting(
        PROBLEMS["uci-wine"], Run("uci-wine", "udn", None, 4.0, 1, 0), 1000, settings
    )
    assert table["schedule"](0) == 1
    assert table["schedule"](table["epochs"]) == pytest.approx(0.01)


# Verdicts

CLASSES = {"name": "made", "group": "g", "about": "made up", "task": "classes", "role": "test"}
NUMBERS = {**CLASSES, "task": "regression"}


def row(model, value, *, seed=0, depth=None, start=None, val=None, **more):
    mean = more.pop("mean", depth or 3.0)
    row = {"problem": "made", "model": model, "depth": depth, "start": start, "length": 1}
    row |= {"seed": seed, "test_score": value, "val_score": value if val is None else val}
    row |= {"depth_mean": mean, "depth_mode": round(mean), "last_depth_mean": mean}
    row |= {"depth_probs": [0.0, 0.5, 0.5], "depth_trace": [[1, mean], [2, mean]]}
    row |= {
        "test_log_score": -0.5,
        "settled_epoch": None,
        "layer_rows": 10 * (depth or mean),
        "seconds": 1.0,
    }
    return {**row, **more}


def fixed_rows(scores):
    """{depth: (score of seed 0, of seed 1, …)}"""
    return [
        row("fixed", value, seed=seed, depth=depth)
        for depth, values in scores.items()
        for seed, value in enumerate(values)
    ]


def udn_rows(values, start=4.0, **more):
    return [row("udn", value, seed=seed, start=start, **more) for seed, value in enumerate(values)]


SCORES = {1: (0.70, 0.72), 2: (0.88, 0.90), 3: (0.88, 0.92), 4: (0.86, 0.90)}
# Means 0.71, 0.89, 0.90, 0.88; the best is 3, with a standard error of 0.02.


def test_the_best_depth_and_the_smallest_within_one_standard_error():
    found = verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.87, 0.89)), 4.0)
    assert found.best_depth == 3
    assert found.best_score == pytest.approx(0.90)
    assert found.error == pytest.approx(0.02)
    assert found.smallest == 2
    assert found.regret is True
    assert found.loss == pytest.approx(1.0)
    assert found.parsimony is True
    assert found.length is None  # there was no longer training
    assert found.start is None  # nor another start
    worse = verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.87, 0.88)), 4.0)
    assert worse.regret is False


def test_hindsight_is_judged_on_a_seed_that_it_has_not_seen():
    """Each seed borrows the depth that is best on the others."""
    scores = {1: (0.9, 0.5, 0.5), 2: (0.5, 0.9, 0.5), 3: (0.6, 0.6, 0.9)}
    found = verdicts.verdict(CLASSES, fixed_rows(scores) + udn_rows((0.6, 0.6, 0.6)), 4.0)
    assert (found.best_depth, found.error) == (3, pytest.approx(0.1))
    # Seed 0 goes by depth 3 (0.75 on the others), so does seed 1; seed 2 by 1, the first of equals.
    assert found.borrowed_score == pytest.approx((0.6 + 0.6 + 0.5) / 3)
    assert found.borrowed is False
    same = {1: (0.5, 0.52, 0.5), 2: (0.9, 0.92, 0.9)}
    found = verdicts.verdict(CLASSES, fixed_rows(same) + udn_rows((0.9, 0.9, 0.9)), 4.0)
    assert found.borrowed_score == pytest.approx(found.best_score)
    assert found.borrowed is found.chosen is True
    lower = {depth: tuple(1 - v for v in values) for depth, values in scores.items()}
    found = verdicts.verdict(NUMBERS, fixed_rows(lower) + udn_rows((0.4, 0.4, 0.4)), 4.0)
    assert found.borrowed_score == pytest.approx(1 - (0.6 + 0.6 + 0.5) / 3)
    ragged = fixed_rows(scores)[:-1] + udn_rows((0.6, 0.6, 0.6))
    assert verdicts.verdict(CLASSES, ragged, 4.0).borrowed is None


def test_errors_are_better_when_they_are_lower():
    scores = {depth: tuple(1 - v for v in values) for depth, values in SCORES.items()}
    good = verdicts.verdict(NUMBERS, fixed_rows(scores) + udn_rows((0.12, 0.11)), 4.0)
    assert (good.best_depth, good.smallest, good.regret) == (3, 2, True)
    bad = verdicts.verdict(NUMBERS, fixed_rows(scores) + udn_rows((0.13, 0.12)), 4.0)
    assert bad.regret is False
    assert bad.loss == pytest.approx(1.25)


def test_equal_scores_go_to_the_shallower_depth_and_leave_no_room():
    rows = fixed_rows({1: (1.0, 1.0), 2: (1.0, 1.0)})
    found = verdicts.verdict(CLASSES, rows + udn_rows((1.0, 1.0), mean=3.2), 4.0)
    assert (found.best_depth, found.smallest, found.error) == (1, 1, 0.0)
    assert found.regret
    assert found.as_chosen
    assert found.loss == 0.0
    assert found.parsimony is True  # mode 3 is two above
    found = verdicts.verdict(CLASSES, rows + udn_rows((1.0, 0.999), mean=3.6), 4.0)
    assert found.regret is False
    assert found.loss == math.inf
    assert found.parsimony is False


def test_one_seed_has_no_standard_error_and_no_verdict_that_needs_it():
    rows = fixed_rows({1: (0.5,), 2: (0.6,)}) + udn_rows((0.6,))
    found = verdicts.verdict(CLASSES, rows, 4.0)
    assert found.error is found.smallest is found.regret is found.parsimony is None
    assert found.as_chosen is True


def test_the_search_chooses_by_validation_seed_by_seed_and_the_smaller_of_equals():
    rows = [
        row("fixed", 0.80, seed=0, depth=1, val=0.9),
        row("fixed", 0.95, seed=0, depth=2, val=0.9),  # as good on validation, but deeper
        row("fixed", 0.70, seed=1, depth=1, val=0.5),
        row("fixed", 0.60, seed=1, depth=2, val=0.8),
    ]
    picks = verdicts.chosen_by_validation(rows, 1)
    assert [(p["seed"], p["depth"]) for p in picks] == [(0, 1), (1, 2)]
    lower = verdicts.chosen_by_validation(rows, -1)
    assert [(p["seed"], p["depth"]) for p in lower] == [(0, 1), (1, 1)]
    found = verdicts.verdict(CLASSES, rows + udn_rows((0.69, 0.71)), 4.0)
    assert found.chosen_score == pytest.approx(0.70)
    assert found.chosen_depth == 1.5
    assert found.as_chosen is True


def test_costs_are_shares_of_the_whole_search():
    fixed = fixed_rows(dict.fromkeys((1, 2, 3, 4), (0.9, 0.9)))
    found = verdicts.verdict(CLASSES, fixed + udn_rows((0.9, 0.9), mean=2.0), 4.0)
    assert verdicts.costs([found]) == pytest.approx((0.25, 0.2))
    assert verdicts.reached([found], verdicts.CRITERIA[2]) is True
    assert found.seconds == pytest.approx(2 / 8)
    assert found.arithmetic == pytest.approx(20 / 100)
    assert found.cheap
    slow = udn_rows((0.9, 0.9), mean=2.0, seconds=1.1)
    dear = verdicts.verdict(CLASSES, fixed + slow, 4.0)
    assert dear.cheap is False
    assert verdicts.reached([found, dear], verdicts.CRITERIA[2]) is False  # 0.26 on average
    # Seconds of two machines say nothing of each other; the arithmetic does.
    elsewhere = [{**one, "device": "another"} for one in udn_rows((0.9, 0.9), mean=2.0)]
    apart = verdicts.verdict(CLASSES, fixed + elsewhere, 4.0)
    assert apart.seconds is apart.cheap is None
    assert apart.arithmetic == found.arithmetic
    assert verdicts.costs([found, apart]) == pytest.approx((0.25, 0.2))
    # A UDN with more seeds than the search is compared on those that both have.
    more = udn_rows((0.9, 0.9, 0.9), mean=2.0)
    assert verdicts.verdict(CLASSES, fixed + more, 4.0).seconds == pytest.approx(2 / 8)


def test_starts_must_end_at_one_depth_and_score():
    base = fixed_rows(SCORES)

    def judge(scores, means):
        rows = [
            one
            for start, score, mean in zip((1.0, 4.0, 16.0), scores, means, strict=True)
            for one in udn_rows((score, score), start=start, mean=mean)
        ]
        return verdicts.verdict(CLASSES, base + rows, 4.0)

    found = judge((0.90, 0.89, 0.88), (3.0, 3.1, 3.3))
    assert found.start is True
    assert [one.start for one in found.starts] == [1.0, 4.0, 16.0]
    assert found.udn.depth_mean == pytest.approx(3.1)
    assert judge((0.90, 0.89, 0.88), (3.0, 3.1, 3.4)).start is False  # depths 13 % apart
    apart = judge((0.91, 0.89, 0.88), (3.0, 3.0, 3.0))
    assert apart.start is False  # scores 1.5 s.e. apart
    assert apart.last_start is True  # of the depths alone


def test_longer_training_must_end_at_the_same_depth():
    rows = fixed_rows(SCORES) + udn_rows((0.9, 0.9), mean=3.0)
    assert verdicts.verdict(CLASSES, rows + udn_rows((0.9,), mean=3.3, length=4), 4.0).length
    far = udn_rows((0.9,), mean=3.4, length=4)
    assert verdicts.verdict(CLASSES, rows + far, 4.0).length is False


def test_a_udn_that_takes_more_of_the_cost_is_judged_as_the_usual_one_is():
    rows = fixed_rows(SCORES) + udn_rows((0.80, 0.80))
    longer = udn_rows((0.95, 0.95), mean=3.0, length=3, layer_rows=60)
    longest = udn_rows((0.70, 0.70), mean=3.2, length=4)
    found = verdicts.verdict(CLASSES, rows + longest + longer, 4.0)
    assert found.regret is False
    assert found.times == 1
    assert found.longer.regret is found.longer.as_chosen is True
    assert found.longer.arithmetic == pytest.approx(60 / 100)
    assert found.longer.times == 3  # the least of the lengths
    assert found.long_mean == pytest.approx(3.2)  # of the largest
    assert verdicts.verdict(CLASSES, rows, 4.0).longer is None

    def regret(rows):
        head, lines = table.verdict_table([verdicts.verdict(CLASSES, rows, 4.0)])
        return dict(zip(head[6::2], lines[0][7::2], strict=True))

    assert regret(rows) == {}
    assert regret(rows + longest + longer) == {"trained 3 times as long, all": "yes"}
    assert regret(rows + longest) == {"trained 4 times as long, all": "no"}


def test_seconds_are_those_of_one_network_after_the_other_where_their_pace_is_known():
    fixed = fixed_rows(SCORES)  # depths 1 to 4, ten passes over one row each
    usual = udn_rows((0.9, 0.9), mean=2.0, layer_rows=20, seconds=99.0)
    longer = udn_rows((0.9, 0.9), mean=2.0, layer_rows=90, length=3)
    pace = verdicts.Pace((1.0, 2.0), (3.0, 5.0), (2.0, 4.0))
    found = verdicts.verdict(CLASSES, fixed + usual + longer, 4.0, pace)
    search = sum(1 + 2 * depth for depth in (1, 2, 3, 4))
    assert found.seconds == pytest.approx((3 + 5 * 2) / search)
    assert found.longer.seconds == pytest.approx(3 * (3 + 5 * 3) / search)  # three layers a pass
    assert found.cheap is False
    trace = [[1, 2.0], [4000, 2.0]]
    rests = [{**r, "settled_epoch": 1000, "depth_trace": trace} for r in usual]
    rule = ub.HeldOutAscent()
    spared = sum(not rule.is_regular(epoch) for epoch in range(1001, 4001)) / 4000
    assert 0.3 < spared < 0.7
    found = verdicts.verdict(CLASSES, fixed + rests, 4.0, pace)
    both = (1 - spared) * (3 + 5 * 2) + spared * (2 + 4 * 2)
    assert found.seconds == pytest.approx(both / search)
    cut = [{**r, "layer_rows": 0} if r["depth"] == 4 else r for r in fixed]  # broke off at once
    assert verdicts.verdict(CLASSES, cut + rests, 4.0, pace).seconds == found.seconds
    assert verdicts.verdict(CLASSES, fixed + usual, 4.0).seconds == pytest.approx(99 / 4)


def test_a_run_without_a_score_is_never_the_best():
    rows = fixed_rows({1: (0.6, 0.7), 2: (0.9, None)}) + udn_rows((0.6, 0.7))
    found = verdicts.verdict(CLASSES, rows, 4.0)
    assert (found.best_depth, found.smallest) == (1, 1)
    broken = verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.9, None)), 4.0)
    assert broken.regret is broken.as_chosen is False


def test_without_fixed_depths_or_the_start_there_is_no_verdict():
    assert verdicts.verdict(CLASSES, udn_rows((0.9, 0.9)), 4.0) is None
    assert verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.9,)), 8.0) is None


def test_another_method_needs_few_columns():
    names = ("start", "length", "seed", "test_score", "depth_mean", "depth_mode", "seconds")
    full = udn_rows((0.9, 0.9))
    mine = [{k: r[k] for k in ("model", "layer_rows", *names)} for r in full]
    found, whole = (verdicts.verdict(CLASSES, fixed_rows(SCORES) + r, 4.0) for r in (mine, full))
    assert found.log_scores["UDN"] is None
    assert (found.regret, found.loss, found.cheap) == (whole.regret, whole.loss, whole.cheap)


def test_shares_count_the_problems_that_were_judged():
    good = verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.9, 0.9)), 4.0)
    bad = verdicts.verdict(CLASSES, fixed_rows(SCORES) + udn_rows((0.8, 0.8)), 4.0)
    unknown = verdicts.verdict(CLASSES, fixed_rows({1: (0.5,)}) + udn_rows((0.5,)), 4.0)
    found = [good] * 6 + [bad, unknown]
    assert verdicts.share(found, "regret") == (6, 7)
    regret, length = verdicts.CRITERIA[0], verdicts.CRITERIA[-1]
    assert verdicts.reached(found, regret) is True  # 86 %
    assert verdicts.reached([*found, bad], regret) is False
    assert verdicts.reached(found, length) is None


# Rows


def test_arithmetic_counts_the_layers_of_every_epoch():
    history = [{"epoch": e, "max_depth": m} for e, m in ((2, 3), (4, 5), (5, 4))]
    assert runs.layer_rows(history, 10) == 10 * (2 * 3 + 2 * 5 + 1 * 4)
    assert runs.layer_rows([], 10) == 0


def test_traces_keep_the_end():
    history = [{"epoch": e, "depth_mean": e / 7} for e in range(1, 91)]
    points = runs.trace(history)
    assert len(points) <= runs.TRACE
    assert points[-1] == [90, 12.86]
    assert runs.trace(history[:2]) == [[1, 0.14], [2, 0.29]]


# From end to end

TINY = [
    *("--problems", "spiral-2", "sklearn-diabetes", "--seeds", "0-1", "--depths", "1", "3"),
    *("--starts", "1", "4", "--made-epochs", "2", "--table-steps", "12", "--device", "cpu"),
]


def run(out, *words: str) -> list[dict]:
    return depth.run(options(*TINY, "--out", str(out), *words))


def timeless(documents):
    kept = [[{**r, "seconds": 0} for r in d["runs"]] for d in documents]
    return records.plain(kept)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    return folder, run(folder)


def test_the_suite_from_end_to_end(finished):
    folder, documents = finished
    assert [d["problem"]["name"] for d in documents] == ["spiral-2", "sklearn-diabetes"]
    written = json.loads((folder / "sklearn-diabetes.json").read_text())
    assert written == records.plain(documents[1])
    rows = written["runs"]
    count = {m: sum(r["model"] == m for r in rows) for m in ("fixed", "udn", "dun")}
    assert count == {"fixed": 4, "udn": 4 + 2 + 2, "dun": 2}
    for one in rows:
        assert 0 < one["test_score"] < 500  # in the target's units
        assert one["seconds"] > 0
        assert one.get("stopped", "epochs") == "epochs"
    fixed = [r for r in rows if r["model"] == "fixed"]
    epochs = fixed[0]["layer_rows"] // 282
    assert [r["layer_rows"] for r in fixed] == [282 * epochs * r["depth"] for r in fixed]
    for one in (r for r in rows if r["model"] == "udn"):
        assert sum(one["depth_probs"]) == pytest.approx(1, abs=2e-3)
        assert one["depth_trace"][-1][1] == pytest.approx(one["last_depth_mean"], abs=0.01)
    assert {r["length"] for r in rows if r["model"] == "udn"} == {1, 3, 4}
    assert not (folder / "parts").exists()
    page = (folder / "table.md").read_text()
    assert page.index("## Verdicts") < page.index("## Problems") < page.index("### spiral-2")
    assert "| sklearn-diabetes | development |" in page
    html = (folder / "page.html").read_text()
    ElementTree.fromstring(html)
    assert html.count("data:image/svg+xml;base64,") == 3
    for name in ("overview", "spiral-2", "sklearn-diabetes"):
        drawn = (folder / f"{name}.svg").read_text()
        assert "<svg" in drawn
        assert "nan" not in drawn


def test_the_page_is_written_again_from_the_files(finished, tmp_path, capsys):
    folder, _ = finished
    again = tmp_path / "again"
    again.mkdir()
    for path in folder.glob("*.json"):
        shutil.copy(path, again)
    assert table.main([str(again)]) == 0
    for name in ("table.md", "page.html", "overview.svg", "spiral-2.svg"):
        assert (again / name).read_text() == (folder / name).read_text(), name
    assert "## Verdicts" in capsys.readouterr().out
    # Files that were not made alike are named.
    path = again / "spiral-2.json"
    document = json.loads(path.read_text())
    document["configuration"]["lr"] = 0.1
    path.write_text(json.dumps(document))
    document["runs"] = [r for r in document["runs"] if r["model"] != "fixed"]
    path.write_text(json.dumps(document))
    page = table.write(again)
    assert "Not all problems were run with the same settings" in page
    assert "not counted: spiral-2." in page
    with pytest.raises(StudyError, match="has no results of the depth suite"):
        table.write(tmp_path)


def test_a_row_is_what_fit_does_with_one_model(finished):
    _, documents = finished
    found = next(r for r in documents[0]["runs"] if r["model"] == "udn" and r["seed"] == 1)
    parts = PROBLEMS["spiral-2"].data(1)
    own = Run("spiral-2", "udn", None, found["start"], 1, 1)
    settings = settings_of(options(*TINY))
    model = recipe.build(own, parts, settings)
    arguments = recipe.fitting(PROBLEMS["spiral-2"], own, 1024, settings)
    result = ub.fit(model, parts.train, validation=parts.validation, **arguments)
    again = runs.score(own, model, result, parts)
    assert again["test_score"] == pytest.approx(found["test_score"], abs=2e-3)
    assert again["depth_mean"] == pytest.approx(found["depth_mean"], abs=1e-2)
    assert again["layer_rows"] == found["layer_rows"]


def test_shorter_trainings_are_the_beginning_of_the_longest_one(finished, tmp_path, monkeypatch):
    _, documents = finished
    on_its_way = [r for r in documents[0]["runs"] if r["model"] == "udn" and r["start"] == 4]
    both = [(length, seed) for length in (1, 3, 4) for seed in (0, 1)]
    assert [(r["length"], r["seed"]) for r in on_its_way] == both
    alone = run(tmp_path / "alone", "--no-long", "--problems", "spiral-2")
    mine = [r for r in alone[0]["runs"] if r["model"] == "udn" and r["start"] == 4]
    assert timeless([{"runs": mine}]) == timeless([{"runs": on_its_way[:2]}])
    assert on_its_way[0]["seconds"] < on_its_way[2]["seconds"]
    # Interrupted behind that point, its rows are kept.
    real, calls = runs.train_until, []

    def stops(population, settings, place):
        calls.append((population.name, {one.length for one in population.runs}))
        if calls[-1] == ("spirals-long", {4}):
            raise KeyboardInterrupt
        return real(population, settings, place)

    words = "--problems", "spiral-2"
    monkeypatch.setattr(runs, "train_until", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *words)
    monkeypatch.setattr(runs, "train_until", real)
    assert calls[-3:-1] == [("spirals-long", {1}), ("spirals-long", {3})]
    found = run(tmp_path / "cut", *words, "--resume")
    again = [r for r in found[0]["runs"] if r["model"] == "udn" and r["start"] == 4]
    assert timeless([{"runs": again}]) == timeless([{"runs": on_its_way}])


def test_starts_that_do_not_matter_are_trained_once(finished, tmp_path, monkeypatch):
    _, documents = finished
    for document in documents:
        mine = [r for r in document["runs"] if r["model"] == "udn" and r["length"] == 1]
        usual, others = ([r for r in mine if r["start"] == start] for start in (4, 1))
        assert len(usual) == len(others) == 2
        assert all("same_as" not in one for one in usual)
        for one, twin in zip(usual, others, strict=True):
            assert twin == {**one, "start": 1.0, "same_as": 4.0}
        trained = [r["seconds"] for r in document["runs"] if "same_as" not in r]
        assert document["seconds"] == pytest.approx(sum(trained), abs=0.06)

    # It is so: trained by itself, a twin has the same numbers to the last bit.
    real = runs.without_twins
    monkeypatch.setattr(runs, "without_twins", lambda population, *_: (population, []))
    apart = run(tmp_path / "apart", "--no-long", "--problems", "sklearn-diabetes")
    found = [r for r in apart[0]["runs"] if r["model"] == "udn" and r["start"] == 1]
    same = [r for r in documents[1]["runs"] if r["model"] == "udn" and r["start"] == 1]
    same = [{name: r[name] for name in r if name != "same_as"} for r in same]
    assert timeless([{"runs": found}]) == timeless([{"runs": same}])

    # A deep start has more layers from the beginning, which nothing uses: the same network.
    few = Settings(seeds=(0,), starts=(1.0, 4.0, 16.0))
    population = runs.populations([PROBLEMS["tent-3"]], few)
    udns = next(one for one in population if one.kind == "udn")
    left, rows = real(udns, few, runs.Place("cpu", tmp_path))
    assert not left.runs
    assert [(row["start"], row["same_as"]) for row in rows] == [(1.0, 4.0), (16.0, 4.0)]

    # Where the start matters, as with the gradient of 𝓛 in place of the rule, each is trained.
    monkeypatch.setattr(runs, "without_twins", real)
    by_rule = recipe.fitting

    def by_gradient(*given):
        options = by_rule(*given)
        options.pop("depth_rule", None)
        return options

    monkeypatch.setattr(runs, "fitting", by_gradient)
    other = run(tmp_path / "other", "--no-long", "--problems", "spiral-2")
    mine = {r["start"]: r for r in other[0]["runs"] if r["model"] == "udn" and r["seed"] == 0}
    assert not any("same_as" in one for one in mine.values())
    assert mine[1.0]["depth_mean"] != mine[4.0]["depth_mean"]


def test_scores_are_in_the_units_of_the_target():
    own = Run("sklearn-diabetes", "udn", None, 1.0, 1, 0)
    settings, parts = settings_of(options(*TINY)), PROBLEMS["sklearn-diabetes"].data(0)
    model = recipe.build(own, parts, settings)
    arguments = recipe.fitting(PROBLEMS["sklearn-diabetes"], own, 282, settings)
    result = ub.fit(model, parts.train, validation=parts.validation, **arguments)
    found = runs.score(own, model, result, parts)
    x, y = parts.test
    with torch.no_grad():
        prediction = ub.predict(model, x)
        error = parts.scale * (prediction.mean - y)
        means, scales = (parts.scale * part for part in prediction.components())
        each = torch.distributions.Normal(means, scales).log_prob(parts.scale * y)[..., 0]
        log_prob = torch.logsumexp(prediction.depth_log_probs[:, None] + each, 0)
    assert found["test_score"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4)
    assert found["test_log_score"] == pytest.approx(float(log_prob.mean()), rel=1e-4)
    assert found["val_score"] == pytest.approx(parts.scale * result.best_score, rel=1e-4)


def test_a_broken_run_is_drawn_as_far_as_it_goes():
    rows = fixed_rows({1: (0.6, 0.7), 2: (0.9, None)}) + udn_rows((0.9, None))
    found = verdicts.verdict(CLASSES, rows, 4.0)
    drawn = figures.render(partial(drawings.problem, rows=rows, verdict=found))
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_interrupting_and_resuming_gives_the_same_numbers(finished, tmp_path, monkeypatch, capsys):
    _, expected = finished
    real = runs.train_dense
    done = []

    def stops(population, settings, place):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(population.name)
        return real(population, settings, place)

    monkeypatch.setitem(runs.TRAINERS, "dense", stops)
    with pytest.raises(KeyboardInterrupt, match="go on with --resume"):
        run(tmp_path)
    assert (tmp_path / "parts" / "spirals-udn.json").exists()
    with pytest.raises(StudyError, match="cannot resume: seeds of the interrupted suite differ"):
        run(tmp_path, "--seeds", "0", "--resume")
    done.clear()
    found = run(tmp_path, "--resume")
    assert done == [f"sklearn-diabetes-{kind}" for kind in ("udn", "spent", "long", "dun")]
    assert timeless(found) == timeless(expected)
    assert "kept from" in capsys.readouterr().out


def test_some_kinds_are_trained_again_and_the_others_kept(finished, tmp_path, monkeypatch):
    before, expected = finished
    out = tmp_path / "again"
    shutil.copytree(before, out)
    real, done = runs.train_dense, []

    def noted(population, settings, place):
        done.append(population.name)
        return real(population, settings, place)

    monkeypatch.setitem(runs.TRAINERS, "dense", noted)
    kept = json.loads((out / "spiral-2.json").read_text())
    for one in kept["runs"]:
        one["test_score"] = 0.25  # of rows that stay
    (out / "spiral-2.json").write_text(json.dumps(kept))
    found = run(out, "--again", "long", "spent")
    assert done == ["spirals-long", "sklearn-diabetes-spent", "sklearn-diabetes-long"]
    assert timeless(found[1:]) == timeless(expected[1:])
    stays = [r["test_score"] == 0.25 for r in found[0]["runs"]]
    assert stays == [r["model"] != "udn" for r in found[0]["runs"]]  # twins follow the new ones
    done.clear()
    same = run(out, "--again", "dun")  # what was scored on the way of the longest stays, too
    assert done == ["spirals-dun", "sklearn-diabetes-dun"]
    scores = [r["test_score"] for r in found[0]["runs"] if r["model"] != "dun"]
    assert sorted(scores) == sorted(r["test_score"] for r in same[0]["runs"] if r["model"] != "dun")
    with pytest.raises(StudyError, match=r"it has no spiral-2"):
        run(tmp_path / "empty", "--again", "long")
    for words in (("--seeds", "0"), ("--made-epochs", "1")):
        with pytest.raises(
            StudyError, match=f"--again: {words[0][2:].replace('-', '_')} of .* dif"
        ):
            run(out, "--again", "long", *words)
    cut = json.loads((out / "spiral-2.json").read_text())
    cut["runs"] = [r for r in cut["runs"] if r["depth"] != 3]
    (out / "spiral-2.json").write_text(json.dumps(cut))
    with pytest.raises(StudyError, match=r"of spirals-fixed it has 2 of 4 networks"):
        run(out, "--again", "long")
    assert json.loads((out / "spiral-2.json").read_text()) == cut


def test_minutes_end_between_populations(tmp_path, capsys):
    words = ("--problems", "sklearn-iris", "--no-long", "--seeds", "0")
    assert run(tmp_path, *words, "--minutes", "1e-9") == []
    assert "are over; go on with --resume" in capsys.readouterr().out
    assert (tmp_path / "parts" / "settings.json").exists()
    (document,) = run(tmp_path, *words, "--resume")
    lengths = {(row["model"], row["length"]) for row in document["runs"]}
    assert lengths == {("fixed", 1), ("udn", 1), ("dun", 1)}
    assert "| – | no |" not in (tmp_path / "table.md").read_text()  # one seed: few verdicts
    with pytest.raises(StudyError, match="--minutes must be positive"):
        run(tmp_path, "--minutes", "-1")


def test_populations_at_once_give_the_same_numbers(tmp_path, capsys, monkeypatch):
    """Also when one of them fails at first, which is named with its log."""
    words = ("--problems", "sklearn-iris", "--no-long", "--seeds", "0")
    alone = run(tmp_path / "alone", *words)
    words += ("--jobs", "2")
    real = depth.child
    monkeypatch.setattr(
        depth,
        "child",
        lambda options, name: (
            [sys.executable, "-c", "import sys; sys.exit(3)"]
            if name.endswith("udn")
            else real(options, name)
        ),
    )
    with pytest.raises(StudyError, match=r"1 of 3 populations failed, see .*: sklearn-iris-udn"):
        run(tmp_path / "at once", *words)
    assert "sklearn-iris-dun: done" in capsys.readouterr().out
    monkeypatch.setattr(depth, "child", real)
    at_once = run(tmp_path / "at once", *words, "--resume")
    assert {row["model"] for row in at_once[0]["runs"]} == {"fixed", "udn", "dun"}
    assert timeless(alone) == timeless(at_once)
    assert not (tmp_path / "at once" / "parts").exists()
    with pytest.raises(StudyError, match="--jobs must be at least 1"):
        run(tmp_path, "--jobs", "0")


def test_problems_without_their_data_are_skipped_with_a_reason(tmp_path, capsys):
    with pytest.raises(StudyError, match="none of these problems has its data here"):
        run(tmp_path / "out", "--problems", "uci-energy", "--data", str(tmp_path))
    said = capsys.readouterr().out
    assert "uci-energy: skipped, " in said
    assert "energy.npz is not there" in said


def test_a_foreign_file_is_left_alone(tmp_path):
    (tmp_path / "spiral-2.json").write_text("{}")
    with pytest.raises(StudyError, match="is no file of a study's"):
        run(tmp_path)


def test_a_further_group_needs_a_trainer_alone(tmp_path, monkeypatch):
    wine = PROBLEMS["sklearn-wine"]
    words = ("pictures", "images", "made up", "classes", "test", 3, wine.make, "p", "other")
    images = Problem(*words, depths=(2, 5), starts=(1.0, 5.0, 20.0, 40.0), start=5.0)
    monkeypatch.setitem(PROBLEMS, "pictures", images)

    def trainer(population, settings, place):
        each = [dataclasses.asdict(r) for r in population.runs]
        return 2.0, [row(own["model"], 0.9, seed=own["seed"]) | own for own in each]

    monkeypatch.setitem(runs.TRAINERS, "other", trainer)
    (document,) = run(tmp_path, "--problems", "images")
    assert document["problem"]["group"] == "images"
    assert {r["depth"] for r in document["runs"] if r["model"] == "fixed"} == {2, 5}
    assert table.verdict_of(document).udn.start == document["start"] == 5.0
    assert "| pictures | test |" in (tmp_path / "table.md").read_text()


def test_the_registry_knows_the_suite():
    assert STUDIES["depth"].module == "unbounded.experiments.depth"
