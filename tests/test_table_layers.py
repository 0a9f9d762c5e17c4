"""Dense layers for the columns of a table, and the preset that uses them."""

import math

import numpy as np
import pytest
import torch

import unbounded as ub
from helpers import same, state
from unbounded.estimators.rows import numbers
from unbounded.training.presets import PRESETS, cosine


def test_waves_are_the_formula_of_the_docstring():
    layer = ub.TableDense(3, 5, 2, embedded=[2, 0], frequencies=4, embedding=3).hidden(1)
    waves, x = layer.waves.double(), torch.randn(7, 3, dtype=torch.float64)
    waves.factor.data = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    scaled = x * waves.factor
    expected = [scaled]
    for place, column in enumerate((0, 2)):
        each = torch.cos(
            2 * math.pi * (scaled[:, column, None] * waves.frequency[place] + waves.phase[place])
        )
        expected.append(each @ waves.weight[place] + waves.bias[place])
    torch.testing.assert_close(waves(x), torch.cat(expected, 1))
    assert layer.linear.in_features == waves.out_features == 3 + 2 * 2


def test_steps_tell_which_side_of_a_threshold_a_value_is_on():
    layers = ub.TableDense(3, 5, 2, embedded=[1], steps=[(2, 0.5), (0, -1.0)], height=0.4)
    waves = layers.hidden(1).waves
    x = torch.tensor([[-1.0, 7.0, 0.5], [-0.9, 7.0, 0.6]])
    with torch.no_grad():
        waves.factor.fill_(-3.0)  # of the columns; thresholds are of what comes in
    expected = torch.tensor([[-0.2, -0.2], [0.2, 0.2]])
    torch.testing.assert_close(waves(x)[:, -2:], expected)
    without = ub.TableDense(3, 5, 2, embedded=[1]).hidden(1).waves
    without.load_state_dict(waves.state_dict())
    torch.testing.assert_close(waves(x)[:, :-2], without(x))
    assert waves.out_features == without.out_features + 2


def test_gradients_of_all_its_parts():
    layer = ub.TableDense(2, 3, 1, embedded=[1]).hidden(1).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)
    assert set(names) >= {"waves.factor", "waves.frequency", "waves.phase", "linear.weight"}

    def outputs(*given):
        return torch.func.functional_call(layer, dict(zip(names, given, strict=True)), (x,))

    torch.autograd.gradcheck(outputs, values)


def test_a_new_network_predicts_the_guess():
    model = ub.UDN(ub.TableDense(4, 8, 3), ub.Categorical(3), ub.FixedDepth(3))
    probs = model.predict(torch.randn(5, 4)).probs
    torch.testing.assert_close(probs, torch.full((5, 3), 1 / 3))


@pytest.mark.parametrize("steps", [[], [(1, 0.1), (0, -0.7)]], ids=["smooth", "steps"])
@pytest.mark.parametrize("embedded", [None, [], [1]], ids=["all", "none", "one"])
def test_saved_and_read(tmp_path, embedded, steps):
    options = {"frequencies": 3, "embedding": 2, "spread": 0.5, "steps": steps, "height": 0.7}
    layers = ub.TableDense(2, 6, 2, embedded=embedded, **options)
    model = ub.UDN(layers, ub.Categorical(2), ub.TruncatedNormal(2.0, 1.0), seed=3)
    x = torch.randn(6, 2)
    ub.save(model, tmp_path / "m.udn")
    again = ub.load(tmp_path / "m.udn")
    assert again.layers.config() == layers.config()
    assert same(state(again), state(model))
    torch.testing.assert_close(again(x), model(x))
    frozen = model.freeze()
    torch.testing.assert_close(frozen(x)[0], model(x))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"embedded": [2]}, "columns from 0 to 1"),
        ({"embedded": [-1]}, "columns from 0 to 1"),
        ({"embedding": 1}, "embedding must be at least 2"),
        ({"frequencies": 0}, "frequencies must be an integer"),
        ({"spread": 0.0}, "spread must be positive"),
        ({"spread": math.inf}, "spread must be positive"),
        ({"steps": [(2, 0.0)]}, "a column from 0 to 1"),
        ({"steps": [(-1, 0.0)]}, "a column from 0 to 1"),
        ({"steps": [(0, math.nan)]}, "finite threshold"),
        ({"height": 0.0}, "height must be positive"),
    ],
)
def test_bad_arguments_are_told(options, said):
    with pytest.raises(ValueError, match=said):
        ub.TableDense(2, 4, 1, **options)


def test_columns_with_more_than_two_values():
    x = np.array([[0, 1, 5, 2.0], [1, 1, 5, 3.0], [0, 1, 6, 4.0], [1, 1, 7, 2.0]])
    assert numbers(x) == [2, 3]
    assert numbers(x[:1]) == []


def test_the_preset_embeds_numbers_and_not_too_many():
    built = PRESETS["tables"].built(4, 8, 1, [1, 3])
    assert isinstance(built, ub.TableDense)
    assert built.embedded == [1, 3]
    assert PRESETS["tables"].built(400, 8, 1, range(300)).embedded == []
    assert type(PRESETS["settled"].built(4, 8, 1, [1])) is ub.PreNormDense


def test_the_rate_rises_and_then_falls():
    rates = [cosine((epoch + 0.5) / 100) for epoch in range(100)]
    top = max(range(100), key=rates.__getitem__)
    assert 4 <= top <= 6
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[0] <= 0.1 < 0.99 < rates[top] <= 1
    assert rates[-1] == pytest.approx(0.01, abs=1e-3)
    assert cosine(1.0) == pytest.approx(0.01)


def test_small_tables_train_in_one_thread(monkeypatch):
    seen = []
    original = ub.UDNRegressor._run.__globals__["Training"].by_fit

    def by_fit(*arguments, **options):
        seen.append(torch.get_num_threads())
        return original(*arguments, **options)

    monkeypatch.setattr(ub.UDNRegressor._run.__globals__["Training"], "by_fit", by_fit)
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ub.UDNRegressor(epochs=1, width=8).fit(x, y)
        ub.UDNRegressor(epochs=1, width=4096, batch_size=51).fit(x, y)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]
