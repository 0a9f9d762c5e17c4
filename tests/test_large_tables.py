"""Large tables: as few copies as possible, and none that stays longer than it is needed."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import unbounded as ub
from helpers import classes, classifier
from unbounded.engines.member import Terms
from unbounded.estimators import ensemble, rows
from unbounded.estimators.rows import Scaling, Scalings, WeightedRows, grouped
from unbounded.steps.batches import ArrayBatches, as_inputs
from unbounded.training import Callback


@given(
    table=st.lists(st.tuples(*[st.sampled_from([-1.0, -0.0, 0.0, 2.5, np.nan])] * 3), min_size=1),
    at_once=st.integers(1, 9),
    seed=st.integers(0, 5),
)
@settings(deadline=None)
def test_equal_rows_are_found_without_a_second_table(table, at_once, seed):
    """As np.unique finds them, however few rows are compared at once."""
    numbers = np.array(table)
    weights = np.random.default_rng(seed).random(len(numbers))
    keys = np.ascontiguousarray(numbers + 0.0).view(np.dtype((np.void, 24))).ravel()
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_AT_ONCE", at_once)
        found, places, counts = grouped([numbers[:, :1], numbers[:, 1:]], weights)
    assert_array_equal(found, first)
    assert_array_equal(places, group)
    expected = [weights[group == k].sum() for k in range(len(first))]
    assert counts == pytest.approx(expected)


def test_rows_are_scaled_a_part_at_a_time(monkeypatch):
    x = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    x[7, 1] = 1e300
    model, scaling = classifier(), Scaling(np.full(4, 3.0), np.full(4, 2.0))
    whole = Scalings(scaling, None).x(x, model)
    assert whole.dtype == torch.float64
    assert_array_equal(whole.numpy(), scaling.apply(x))
    monkeypatch.setattr(rows, "_AT_ONCE", 7)
    single, _, _ = Scalings(scaling, None).tensors(
        WeightedRows(x, np.zeros(50, int), np.ones(50)), model, torch.float32
    )
    assert single.dtype == torch.float32
    assert torch.equal(single, whole.float())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_found(value):
    x = torch.zeros(5, 2)
    assert torch.equal(as_inputs(x, classifier()), x)
    assert as_inputs(x[:0], classifier()).shape == (0, 2)
    x[3, 1] = value
    with pytest.raises(ValueError, match=r"got 1 NaN or infinite .* first at index .3, 1."):
        as_inputs(x, classifier())


def test_terms_of_many_steps_are_one_tensor():
    terms, each = Terms(), torch.randn(150, 3)
    assert not terms
    for row in each:
        terms.add(row)
    assert torch.equal(terms.all(), each)
    kept = terms.all().data_ptr()
    terms.clear()
    assert not terms
    terms.add(each[5])
    assert torch.equal(terms.all(), each[5:6])
    assert terms.all().data_ptr() == kept


def test_the_terms_of_an_epoch_are_means_over_its_steps():
    class Steps(Callback):
        found: list[float]

        def on_fit_start(self, trainer):
            self.found = []

        def on_step_end(self, trainer, row):
            self.found.append(row["depth_kl"])

    steps = Steps()
    x, y = classes(70)
    history = ub.fit(
        classifier(), x, y, epochs=2, batch_size=10, callbacks=[steps], progress=False
    ).history
    assert len(steps.found) == 14
    for epoch, row in enumerate(history.rows):
        mean = np.mean(steps.found[7 * epoch : 7 * epoch + 7])
        assert row["depth_kl"] == pytest.approx(mean)


@pytest.mark.parametrize("kind", [ub.UDNClassifier, ub.UDNRegressor])
def test_no_copy_of_a_large_table_outlives_its_training(monkeypatch, kind):
    """A trainer, its task and its engine know each other: only a collection frees their rows."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    y = (x[:, 0] > 0) + 0
    after = []
    usual = kind._by_recipe

    def watched(self, *arguments, **options):
        found = usual(self, *arguments, **options)
        after.append(sum(type(one) is ArrayBatches for one in gc.get_objects()))
        return found

    monkeypatch.setattr(kind, "_by_recipe", watched)
    gc.collect()
    gc.disable()
    try:
        kind(random_state=0, epochs=2, width=8).fit(x, y)
        assert after[0] > 0  # of a small one the collector has to come by
        after.clear()
        monkeypatch.setattr(ensemble, "_LARGE", 100)
        gc.collect()
        kind(random_state=0, epochs=2, width=8).fit(x, y)
    finally:
        gc.enable()
    assert set(after) == {0}
