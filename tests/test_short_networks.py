"""Numbers whose best epoch comes early: further networks, trained for that long."""

from types import SimpleNamespace

import numpy as np
import pytest

import unbounded as ub
from unbounded import UDNRegressor
from unbounded.estimators import shares, trainings
from unbounded.estimators.pace import Clock, PastBest
from unbounded.training import NonFiniteError, TrainingWarning

rng = np.random.default_rng(0)
X = rng.normal(size=(220, 6))
y = X[:, 0] + np.sin(2 * X[:, 1]) + 1.5 * rng.normal(size=220)
EPOCHS = 60
SHORT = {"epochs": EPOCHS, "width": 32, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def model():
    return UDNRegressor(**SHORT).fit(X, y)


@pytest.mark.parametrize(("best", "ends"), [([4], 18), ([9], 27), ([4, 15], 45), ([20], None)])
def test_training_ends_at_three_times_the_best_epoch(best, ends):
    stopped = []
    trainer = SimpleNamespace(epoch=0, stop=lambda: stopped.append(trainer.epoch))
    rule = PastBest(EPOCHS, spread=2.0)
    for epoch in range(1, EPOCHS + 1):
        trainer.epoch = epoch
        found = [SimpleNamespace(best=SimpleNamespace(epoch=min(b, epoch))) for b in best]
        trainer.members = [*found, SimpleNamespace(best=None)]
        rule.on_epoch_end(trainer, {"val_rmse": 0.5})
    assert (stopped[0] if stopped else None) == ends


@pytest.mark.parametrize(("error", "ends"), [(0.39, False), (0.41, True), (float("nan"), True)])
def test_training_goes_on_where_little_is_left_of_the_targets(error, ends):
    trainer = SimpleNamespace(epoch=EPOCHS // 2, stop=lambda: stopped.append(True), members=[])
    trainer.members = [SimpleNamespace(best=SimpleNamespace(epoch=2))]
    rule, stopped = PastBest(EPOCHS, spread=2.0), []
    rule.on_epoch_end(trainer, {"val_rmse": error})
    rule.on_epoch_end(trainer, {"val_rmse": 1.0})  # the least counts
    assert bool(stopped) == ends


def test_small_tables_without_noise_are_trained_to_the_end():
    state = np.random.RandomState(1)
    x = state.randn(80, 4)
    smooth = x @ [1, 0.5, -0.7, 0.2] + 0.05 * state.randn(80)
    model = UDNRegressor(**SHORT).fit(x, smooth)
    assert model.n_iter_ == EPOCHS
    assert len(model.members_) == 1


def test_a_likelihood_without_a_mean_has_one_network():
    class Laplace(ub.Likelihood):
        def num_outputs(self, size):
            return size

        def log_prob(self, outputs, y):
            return -(outputs[..., 0] - y[..., 0]).abs() - 0.6931

    model = UDNRegressor(**SHORT, likelihood=Laplace()).fit(X, y)
    assert len(model.members_) == 1
    with pytest.raises((TypeError, ValueError), match="predicts no mean"):
        model.predict(X)


def test_further_networks_are_short_and_see_the_same_rows(monkeypatch):
    runs = []
    usual = UDNRegressor._run

    def recorded(self, train, held, size, seed, clock, *rest, **options):
        run = usual(self, train, held, size, seed, clock, *rest, **options)
        runs.append((run, train, held, clock.epochs))
        return run

    monkeypatch.setattr(UDNRegressor, "_run", recorded)
    model = UDNRegressor(**SHORT).fit(X, y)
    first, *others = runs
    best = model.best_epoch_
    assert model.stopped_ == "patience"
    assert best <= EPOCHS / 2
    assert model.n_iter_ == max(np.ceil(0.3 * EPOCHS), 3 * best)
    assert 2 <= len(model.members_) == len(runs) <= 4
    for run, train, held, epochs in others:
        assert epochs == np.ceil(max(0.75 * best, EPOCHS / 8))
        rates = [row["lr"] for row in run.training.history.rows]
        assert rates[-1] < 0.2 * max(rates)  # the rate falls to the end
        assert np.array_equal(shares.marks(train), shares.marks(first[1]))
        assert np.array_equal(shares.marks(held), shares.marks(first[2]))
    assert sum(len(run.training.history) for run, *_ in runs) <= 1.25 * EPOCHS
    weights = [member.network.hidden["1"].state_dict() for member in model.members_]
    assert len({str(one) for one in weights}) == len(runs)  # they differ
    probs = [member.depth_log_probs() for member in model.members_]
    assert all(one.equal(probs[0]) for one in probs)  # but in depth


def test_the_first_is_the_lone_network():
    options = SHORT | {"least_squares": False, "calibrate": False}
    several, lone = (UDNRegressor(**options, n_members=k).fit(X, y) for k in ("auto", 1))
    assert len(several.members_) > len(lone.members_) == 1
    assert several.best_epoch_ == lone.best_epoch_
    assert several.n_iter_ == lone.n_iter_
    for name, value in lone.model_.state_dict().items():
        assert value.equal(several.model_.state_dict()[name]), name


def test_they_stay_only_if_held_out_rows_gain(monkeypatch):
    seen = []

    def rigged(models, run):
        seen.append(len(models))
        return 1.0 + 0.01 * (len(models) > 1)

    monkeypatch.setattr(trainings, "_square", rigged)
    model = UDNRegressor(**SHORT).fit(X, y)
    assert max(seen) > 2
    assert len(model.members_) == 1
    monkeypatch.setattr(trainings, "_square", lambda models, run: float(len(models)))
    assert len(UDNRegressor(**SHORT).fit(X, y).members_) == 1  # and no third one is tried
    # Those up to the last mean that was better than the first network.
    monkeypatch.setattr(trainings, "_square", lambda models, run: abs(len(models) - 2.1))
    assert len(UDNRegressor(**SHORT).fit(X, y).members_) == 3


def test_the_mean_is_judged_by_its_squared_error(monkeypatch):
    judged = []
    usual = trainings._square

    def recorded(models, run):
        judged.append((list(models), run, usual(models, run)))
        return judged[-1][-1]

    monkeypatch.setattr(trainings, "_square", recorded)
    options = SHORT | {"least_squares": False, "calibrate": False}
    model = UDNRegressor(**options).fit(X, y, sample_weight=1 + (X[:, 2] > 0))
    models, run, found = judged[1]
    assert len(models) == 2
    model.members_, model.model_ = models, models[0]
    mean = model.target_scaling_.apply(model.predict(run.held.x)[:, None])
    target = model.target_scaling_.apply(run.held.y)
    expected = run.held.weights @ ((target - mean) ** 2).sum(1)
    assert found == pytest.approx(expected, rel=1e-4)


def test_no_further_ones_where_the_best_epoch_is_late():
    smooth = UDNRegressor(**SHORT).fit(X, X[:, 0] + 0.5 * X[:, 1])
    assert smooth.best_epoch_ > EPOCHS / 2
    assert smooth.n_iter_ == EPOCHS
    assert len(smooth.members_) == 1


@pytest.mark.parametrize(
    "options",
    [{"n_members": 1}, {"warm_start": True}, {"quality": "fast"}, {"patience": None}],
    ids=str,
)
def test_nor_where_something_else_is_asked_for(options):
    assert len(UDNRegressor(**SHORT | options).fit(X, y).members_) == 1


def test_patience_none_trains_to_the_end():
    assert UDNRegressor(**SHORT, patience=None).fit(X, y).n_iter_ == EPOCHS


def test_rows_of_ones_own_may_judge(monkeypatch):
    monkeypatch.setattr(trainings, "_square", lambda models, run: 1 / len(models))
    model = UDNRegressor(**SHORT).fit(X[:120], y[:120], eval_set=(X[120:], y[120:]))
    assert len(model.members_) > 1
    assert len(model.conformal_scores_) == 100


def test_a_time_limit_is_kept(monkeypatch):
    monkeypatch.setattr(Clock, "left", property(lambda self: 1e-3))
    assert len(UDNRegressor(**SHORT).fit(X, y).members_) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, NonFiniteError("no number")], ids=repr)
def test_what_was_trained_before_is_kept(monkeypatch, error):
    usual = UDNRegressor._run

    def run(self, train, held, size, seed, clock, anneal, found=(), like=None):
        if like is not None:
            raise error
        return usual(self, train, held, size, seed, clock, anneal, found, like)

    monkeypatch.setattr(UDNRegressor, "_run", run)
    said = "interrupted" if error is KeyboardInterrupt else "left out"
    with pytest.warns(TrainingWarning, match=said):
        model = UDNRegressor(**SHORT).fit(X, y)
    assert len(model.members_) == 1
    assert model.stopped_ == ("interrupted" if error is KeyboardInterrupt else "patience")


def test_files_keep_all_of_them(model, tmp_path):
    model.save(tmp_path / "model.udn")
    again = UDNRegressor.load(tmp_path / "model.udn")
    assert len(again.members_) == len(model.members_) > 1
    assert np.array_equal(again.predict(X), model.predict(X))
    low, high = model.predict_interval(X, 0.8)
    assert (high > low).all()
