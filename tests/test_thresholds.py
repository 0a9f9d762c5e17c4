"""Where classes change along a column, and networks that are shown it."""

import numpy as np
import pytest
import torch

import unbounded as ub
from unbounded.estimators.pace import Clock
from unbounded.estimators.rows import Scaling, WeightedRows
from unbounded.estimators.thresholds import find_thresholds
from unbounded.training import TrainingWarning

SHIFTED = Scaling(np.array([1.0, -2.0]), np.array([2.0, 0.5]))


def _rows(x, y, weights=None):
    return WeightedRows(x, y, np.ones(len(x)) if weights is None else weights)


def _plain(columns):
    return Scaling(np.zeros(columns), np.ones(columns))


def test_thresholds_lie_where_classes_change_and_nowhere_else():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (400, 2))
    y = np.digitize(x[:, 0], [-0.4, 0.3]) % 2  # 0, 1, 0; the other column says nothing
    found = find_thresholds(_rows(x, y), _plain(2), [0, 1])
    assert [column for column, _ in found] == [0, 0]
    for (_, place), true in zip(found, (-0.4, 0.3), strict=True):
        below, above = x[x[:, 0] <= true, 0].max(), x[x[:, 0] > true, 0].min()
        assert place == pytest.approx((below + above) / 2, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_columns_of_noise_hardly_ever_have_one(classes):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(300, 200)), rng.integers(0, classes, 300)
    assert len(find_thresholds(_rows(x, y), _plain(200), range(200))) <= 6


def test_thresholds_are_of_scaled_values():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2)) * 3
    y = (x[:, 1] > 0.7).astype(int)
    [(column, plain)] = find_thresholds(_rows(x, y), _plain(2), [0, 1])
    [(again, scaled)] = find_thresholds(_rows(x, y), SHIFTED, [0, 1])
    assert column == again == 1
    assert scaled == pytest.approx((plain + 2) / 0.5, rel=1e-6)


def test_what_a_threshold_has_to_gain():
    # One cut at 0 turns 2n rows of 50:50 into two halves of shares p and 1 − p: the gain is exact.
    def gain(p):
        return 40 * (np.log(2) + p * np.log(p) + (1 - p) * np.log(1 - p))

    x = np.repeat([-1.0, 1.0], 20)[:, None]
    for right in range(11, 20):
        y = np.concatenate([np.arange(20) < right, np.arange(20) >= right]).astype(int)
        found = find_thresholds(_rows(x, y), _plain(1), [0])
        assert len(found) == (gain(right / 20) >= 6.5), right
    assert gain(15 / 20) < 6.5 < gain(16 / 20)


def test_a_row_of_weight_two_counts_twice():
    rng = np.random.default_rng(2)
    x, weights = rng.normal(size=(200, 1)), rng.integers(1, 3, 200).astype(float)
    y = (x[:, 0] + rng.normal(size=200) > 0).astype(int)
    twice = np.repeat(np.arange(200), weights.astype(int))
    weighted = find_thresholds(_rows(x, y, weights), _plain(1), [0])
    repeated = find_thresholds(_rows(x[twice], y[twice]), _plain(1), [0])
    assert weighted
    assert weighted == repeated


def test_labels_and_no_columns():
    x = np.linspace(-1, 1, 200)[:, None]
    y = np.stack([x[:, 0] > 0.5, x[:, 0] > -0.5], 1).astype(int)
    found = [place for _, place in find_thresholds(_rows(x, y), _plain(1), [0])]
    assert found == pytest.approx([-0.5, 0.5], abs=0.01)
    assert find_thresholds(_rows(x, y), _plain(1), []) == []


def test_large_tables_are_looked_at_in_part():
    x = np.linspace(-1, 1, 200_001)[:, None]
    [(_, place)] = find_thresholds(_rows(x, (x[:, 0] > 0.25).astype(int)), _plain(1), [0])
    assert place == pytest.approx(0.25, abs=3e-4)


def test_numbers_beyond_single_precision():
    x = np.linspace(-1e300, 1e300, 100)[:, None]
    [(_, place)] = find_thresholds(_rows(x, (x[:, 0] > 0).astype(int)), _plain(1), [0])
    assert abs(place) < 1e39


def test_neighbours_in_single_precision_are_told_apart():
    one = np.float32(4.0)
    for low in (one, np.nextafter(one, np.float32(9))):  # halfway rounds down, and up
        high = np.nextafter(low, np.float32(9))
        x = np.repeat([low, high], 20)[:, None]
        [step] = find_thresholds(_rows(x, np.repeat([0, 1], 20)), _plain(1), [0])
        waves = ub.TableDense(1, 2, 1, embedded=[], steps=[step]).hidden(1).waves
        for dtype in (torch.float32, torch.float64):
            seen = waves.to(dtype)(torch.tensor([[low], [high]], dtype=dtype))[:, 1]
            assert seen[0] < 0 < seen[1]


def _stairs():
    """Classes by two thresholds of one column, beside two columns of noise and a yes or no."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 4))
    x[:, 3] = x[:, 3] > 0
    return x, np.digitize(x[:, 1], [-0.3, 0.9])


def test_classifiers_show_them_to_their_networks(tmp_path):
    x, y = _stairs()
    options = {"epochs": 2, "width": 8, "random_state": 0}
    model = ub.UDNClassifier(**options).fit(x, y)
    steps = model.model_.layers.steps
    assert {1} <= {column for column, _ in steps} <= {0, 1, 2}
    found = model.input_scaling_.undo(np.array([[0, place, 0, 0] for _, place in steps]))[:, 1]
    assert min(abs(found + 0.3)) < 0.05
    assert min(abs(found - 0.9)) < 0.05
    model.save(tmp_path / "m.udn")
    again = ub.UDNClassifier.load(tmp_path / "m.udn")
    assert again.model_.layers.steps == steps
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-7)
    shared = ub.UDNClassifier(ensemble="shared", n_members=2, **options).fit(x, y)
    assert shared.model_.layers.steps == steps


def test_others_do_without():
    x, y = _stairs()
    options = {"epochs": 1, "width": 8, "random_state": 0}
    assert ub.UDNRegressor(**options).fit(x, y.astype(float)).model_.layers.steps == []
    own = ub.UDNClassifier(layers=lambda i, o: ub.TableDense(i, 8, o), **options).fit(x, y)
    assert own.model_.layers.steps == []
    assert not hasattr(
        ub.UDNClassifier(preset="settled", **options).fit(x, y).model_.layers, "steps"
    )


def test_held_out_rows_do_not_choose_thresholds():
    x, y = _stairs()
    further = np.full((40, 4), 5.0) + np.arange(40)[:, None]
    train, held = (x, y), (further, np.arange(40) % 3)
    model = ub.UDNClassifier(epochs=1, width=8, random_state=0)
    alone = model.fit(*train, eval_set=held).model_.layers.steps
    other = model.fit(*train, eval_set=(further, (np.arange(40) // 20))).model_.layers.steps
    assert alone == other


SMALL = {"width": 8, "random_state": 0, "validation_fraction": 0.3, "batch_size": 64}


def _many(kind):
    """Classes by thresholds of each column, or by a slanting line."""
    x = np.random.default_rng(5).normal(size=(360, 3))
    if kind == "stairs":
        return x, (x > 0.4).sum(1)
    return x, (x.sum(1) > 0).astype(int) + (x.sum(1) > 1)


@pytest.mark.parametrize("kind", ["stairs", "slope"])
def test_many_held_out_rows_decide_whether_thresholds_are_shown(kind, monkeypatch):
    trained = []
    original = ub.UDNClassifier._by_recipe

    def by_recipe(self, models, train, held, scalings, clock, *rest):
        found = original(self, models, train, held, scalings, clock, *rest)
        trained.append((bool(models[0].layers.steps), clock.epochs, found.best_log_score))
        return found

    monkeypatch.setattr(ub.UDNClassifier, "_by_recipe", by_recipe)
    model = ub.UDNClassifier(epochs=25, **SMALL).fit(*_many(kind))
    (*trials, last) = trained
    assert [trial[:2] for trial in trials] == [(False, 3), (True, 3)]
    assert last[:2] == (kind == "stairs", 25)
    assert last[0] == (trials[1][2] > trials[0][2])
    assert model.n_iter_ == 25
    assert bool(model.model_.layers.steps) == last[0]


def test_training_on_all_rows_does_as_held_out_rows_decided():
    model = ub.UDNClassifier(epochs=8, refit=True, **SMALL).fit(*_many("slope"))
    assert model.refit_history_ is not None
    assert not model.model_.layers.steps


def test_too_few_epochs_for_a_trial():
    model = ub.UDNClassifier(epochs=7, **SMALL).fit(*_many("slope"))
    assert model.model_.layers.steps


def test_a_part_of_a_clock():
    part = Clock(40.0, 20).part(8)
    assert (part.seconds, part.epochs) == (5.0, 2)
    assert (Clock(None, 3).part(8).seconds, Clock(None, 3).part(8).epochs) == (None, 1)


def test_an_interrupted_trial_is_what_is_kept(monkeypatch):
    original = ub.UDNClassifier._by_recipe
    calls = []

    def by_recipe(*arguments):
        calls.append(original(*arguments)._replace(stopped="interrupted"))
        return calls[-1]

    monkeypatch.setattr(ub.UDNClassifier, "_by_recipe", by_recipe)
    with pytest.warns(TrainingWarning, match="interrupted"):
        model = ub.UDNClassifier(epochs=16, **SMALL).fit(*_many("stairs"))
    assert len(calls) == 1
    assert (model.stopped_, model.n_iter_) == ("interrupted", 2)
