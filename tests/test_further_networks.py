"""Classes that are soon learnt by heart: several networks, each with other held-out rows."""

import html
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification

import unbounded as ub
from unbounded import UDNClassifier
from unbounded.cli import main
from unbounded.estimators import shares, trainings
from unbounded.estimators.pace import Clock
from unbounded.estimators.rows import merge
from unbounded.tables import TableModel
from unbounded.tables.pages import model_page
from unbounded.training import NonFiniteError, TrainingWarning
from unbounded.training.trainer import Trainer

X, y = make_classification(
    160, 8, n_informative=3, n_redundant=0, flip_y=0.35, class_sep=0.6, random_state=0
)
SHORT = {"epochs": 120, "width": 32, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def model():
    return UDNClassifier(**SHORT).fit(X, y)


def test_who_ends_early_pays_for_others(monkeypatch):
    runs = []
    usual = UDNClassifier._run

    def recorded(self, train, held, *rest, **options):
        run = usual(self, train, held, *rest, **options)
        runs.append((len(run.training.history), train, held))
        return run

    monkeypatch.setattr(UDNClassifier, "_run", recorded)
    model = UDNClassifier(**SHORT).fit(X, y)
    assert model.stopped_ == "patience"
    assert 2 <= len(model.members_) == len(runs) <= 4
    assert sum(epochs for epochs, _, _ in runs) <= SHORT["epochs"]
    marks = [(set(shares.marks(train)), set(shares.marks(held))) for _, train, held in runs]
    for k, (learnt, held) in enumerate(marks):
        assert len(learnt) + len(held) == len(X)
        assert not learnt & held
        assert abs(len(held) - 0.15 * len(X)) <= 2
        for _, other in marks[:k]:
            assert not held & other
            assert other <= learnt


def test_the_first_is_the_lone_network(model):
    lone = UDNClassifier(**SHORT, n_members=1).fit(X, y)
    assert len(lone.members_) == 1
    assert lone.best_epoch_ == model.best_epoch_
    assert lone.n_iter_ == model.n_iter_
    for name, value in lone.model_.state_dict().items():
        assert value.equal(model.model_.state_dict()[name]), name


def test_predictions_are_means_of_the_networks(model, tmp_path):
    probs = model.predict_proba(X)
    assert np.allclose(probs.sum(1), 1, atol=1e-12)
    each = []
    for member in model.members_:
        one = pickle.loads(pickle.dumps(model))
        one.members_, one.model_ = [member], member
        each.append(one.predict_proba(X))
    assert np.abs(np.subtract(*each[:2])).max() > 1e-3  # they differ
    assert np.allclose(np.mean(each, 0), probs, atol=1e-6)
    assert np.allclose(probs[:3], model.predict_proba(X[:3]), atol=1e-6)
    assert model.depth_probs_.sum() == pytest.approx(1)
    model.save(tmp_path / "m.udn")
    again = UDNClassifier.load(tmp_path / "m.udn")
    assert len(again.members_) == len(model.members_)
    assert np.array_equal(again.predict_proba(X), probs)


def test_the_same_seed_gives_the_same(model):
    again = UDNClassifier(**SHORT).fit(X, y)
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    "options",
    [
        {"n_members": 1},
        {"quality": "fast"},
        {"warm_start": True},
        {"refit": True},
        {"patience": 5},
        {"preset": "settled", "patience": 5},
        {"validation_fraction": 0.0},
    ],
    ids=str,
)
def test_one_network_where_that_is_asked_for(options):
    assert len(UDNClassifier(**{**SHORT, **options}).fit(X, y).members_) == 1


def test_rows_of_ones_own_judge_one_network():
    model = UDNClassifier(**SHORT).fit(X[:120], y[:120], eval_set=(X[120:], y[120:]))
    assert len(model.members_) == 1


def test_a_further_fit_goes_on_from_the_first(model):
    again = pickle.loads(pickle.dumps(model)).set_params(warm_start=True, epochs=2)
    again.fit(X, y)
    assert len(again.members_) == 1
    assert again.n_iter_ == 2
    again = pickle.loads(pickle.dumps(model)).set_params(warm_start=True, epochs=2, n_members=1)
    assert len(again.fit(X, y).members_) == 1
    # The others have learnt from the rows that would judge them.
    again = pickle.loads(pickle.dumps(model)).set_params(warm_start=True, n_members=3)
    with pytest.raises(ValueError, match="warm_start trains 1 members on, n_members is 3"):
        again.fit(X, y)
    assert len(again.members_) == len(model.members_)  # a fit that fails changes nothing


def test_a_file_knows_that_each_had_rows_of_its_own(model, tmp_path):
    model.save(tmp_path / "m.udn")
    again = UDNClassifier.load(tmp_path / "m.udn").set_params(warm_start=True, n_members=3)
    with pytest.raises(ValueError, match="warm_start trains 1 members on"):
        again.fit(X, y)


def test_partial_fit_moves_all(model):
    again = pickle.loads(pickle.dumps(model))
    before = [m.network.hidden["1"].state_dict() for m in model.members_]
    again.partial_fit(X, y)
    assert len(again.members_) == len(before)
    for member, state in zip(again.members_, before, strict=True):
        now = member.network.hidden["1"].state_dict()
        assert any(not now[name].equal(value) for name, value in state.items())


def test_an_interrupted_network_is_left_out(monkeypatch, model):
    usual = UDNClassifier._run

    def interrupted(self, *rest, like=None, **options):
        if like is not None:
            raise KeyboardInterrupt
        return usual(self, *rest, **options)

    monkeypatch.setattr(UDNClassifier, "_run", interrupted)
    with pytest.warns(TrainingWarning, match="interrupted"):
        found = UDNClassifier(**SHORT).fit(X, y)
    assert found.stopped_ == "interrupted"
    assert len(found.members_) == 1
    assert found.model_.state_dict().keys() == model.model_.state_dict().keys()


@pytest.mark.parametrize(
    "error", [MemoryError("none left"), FloatingPointError("λ is NaN")], ids=str
)
def test_a_network_that_fails_is_left_out(monkeypatch, error):
    usual, begun = UDNClassifier._run, []

    def failing(self, *rest, like=None, **options):
        begun.append(like)
        if len(begun) == 3:
            raise error
        return usual(self, *rest, like=like, **options)

    monkeypatch.setattr(UDNClassifier, "_run", failing)
    with pytest.warns(TrainingWarning, match=f"left out, 2 of them are kept: {error}"):
        found = UDNClassifier(**SHORT).fit(X, y)
    assert found.stopped_ == "patience"
    assert len(found.members_) == 2


def test_a_network_that_diverges_is_left_out(monkeypatch):
    usual, trainers = Trainer._epoch, []

    def diverging(self, *rest, **options):
        if self not in trainers:
            trainers.append(self)
        if len(trainers) == 2 and self.epoch == 5:
            raise NonFiniteError("the loss is not finite")
        return usual(self, *rest, **options)

    monkeypatch.setattr(Trainer, "_epoch", diverging)
    with pytest.warns(TrainingWarning, match="left out, 1 of them are kept") as told:
        found = UDNClassifier(**SHORT).fit(X, y)
    assert len(told) == 1
    assert found.stopped_ == "patience"
    assert len(found.members_) == 1


def test_the_page_is_of_all_networks(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    frame["t"] = np.where(y, "u", "v")
    options = {"epochs": 60, "width": 32, "device": "cpu", "seed": 1, "references": False}
    model = TableModel.fit(frame, "t", **options)
    estimator = model.estimator
    assert len(estimator.members_) > 1
    text = html.unescape(model_page(model))
    assert f"the expected one {estimator.depth_mean_:.2f}" in text
    size = sum(p.numel() for member in estimator.members_ for p in member.parameters())
    assert f"Parameters, {len(estimator.members_)} networks" in text
    assert f"{size:,}" in text


@settings(max_examples=40, deadline=None)
@given(st.integers(30, 200), st.integers(0, 5), st.floats(0.05, 0.9))
def test_rows_are_held_out_once(count, seed, fraction):
    rng = np.random.RandomState(seed)
    rows = merge(rng.rand(count, 2), rng.randint(0, 3, count), np.ones(count))
    been = shares.divide(rows, fraction, None, rng).held
    first = len(been)
    for _ in range(2):
        other = shares.divide_apart(rows, first, been, rng)
        if other is None:  # too few are left
            assert count - len(been) <= first + 3  # each class keeps a row
            break
        assert len(other.held) >= 0.8 * first
        assert not np.intersect1d(other.held, been).size
        assert len(np.union1d(other.held, other.learnt)) == len(rows.x)
        been = np.union1d(been, other.held)


def test_what_is_asked_before_networks_are_added():
    model, clock = UDNClassifier(), Clock(None, 10)
    assert trainings.adds_networks(model, clock)
    assert trainings.adds_networks(ub.UDNRegressor(), clock)
    for asked in ({"ensemble": "shared"}, {"patience": 5}, {"refit": True}, {"n_members": 1}):
        assert not trainings.adds_networks(UDNClassifier(**asked), clock)
    clock.is_over = True
    assert not trainings.adds_networks(model, clock)


@pytest.mark.parametrize(("left", "several"), [(1e9, True), (1e-3, False)])
def test_networks_are_added_while_there_is_time(monkeypatch, left, several):
    monkeypatch.setattr(Clock, "left", left)
    model = UDNClassifier(**SHORT, time_limit=1e9).fit(X, y)
    assert model.stopped_ == "patience"
    assert (len(model.members_) > 1) == several


def test_inspect_shows_all_networks(model, tmp_path, capsys):
    model.save(tmp_path / "m.udn")
    assert main(["inspect", str(tmp_path / "m.udn"), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["networks"] == len(model.members_)
    assert found["depth"]["probs"] == pytest.approx(model.depth_probs_.tolist())
    assert found["depth"]["mean"] == pytest.approx(model.depth_mean_)
    assert f"in {len(model.members_)} networks; below is the first" in printed.err
