"""Dense layers for the columns of a table, and the preset that uses them."""

import math

import numpy as np
import pytest
import torch

import unbounded as ub
from helpers import same, state
from unbounded.cli import inspect
from unbounded.estimators.rows import knots, numbers
from unbounded.files import FileError
from unbounded.files.parts import _part as check_part
from unbounded.steps.held_out import HeldOutAscent
from unbounded.training import presets
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


KNOTS = [[-1.0, 0.0, 0.5, 2.0], [-0.5, 1.0]]


def test_ramps_add_a_piecewise_linear_function_of_each_column():
    options = {"embedded": [2, 0], "frequencies": 4, "embedding": 3}
    ramped = ub.TableDense(3, 5, 2, **options, knots=KNOTS).hidden(1).waves.double()
    plain = ub.TableDense(3, 5, 2, **options).hidden(1).waves.double()
    assert plain.ramps is None
    plain.load_state_dict({k: v for k, v in ramped.state_dict().items() if k != "ramps"})
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)[:, None].expand(-1, 3)
    assert torch.equal(ramped(x), plain(x))  # they start at zero
    ramped.ramps.data.normal_()
    added = ramped(x) - plain(x)
    assert (added[:, :3] == 0).all()
    for place, places in enumerate(KNOTS):
        own = added[:, 3 + 2 * place : 5 + 2 * place]
        values = [own[round((knot + 3) * 100)] for knot in places]
        # Between the knots as NumPy interpolates, beyond them constant.
        for k in range(2):
            expected = np.interp(x[:, 0], places, [value[k].item() for value in values])
            np.testing.assert_allclose(own[:, k].detach(), expected, atol=1e-7)
        # From one knot to the next it rises by half of the ramp's weight.
        steps = torch.stack(values).diff(dim=0)
        torch.testing.assert_close(steps, 0.5 * ramped.ramps[place, : len(places) - 1])


def test_knots_are_quantiles_and_distinct():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=500), np.zeros(500), rng.integers(0, 3, 500), rng.random(500) < 0.01]
    x[0] = 9.0, 1.0, 1.0, 2.0
    first, second, third = knots(x, [0, 2, 3], 16)
    assert first == pytest.approx(np.quantile(x[:, 0], np.linspace(0, 1, 17)), rel=1e-6)
    assert second == [0.0, 1.0, 2.0]
    assert third == [0.0, 2.0]
    close = np.full((50, 1), 1.0) + 1e-12 * np.arange(50)[:, None]
    assert knots(np.r_[close, [[2.0]]], [0], 16) == [[1.0, 2.0]]


def test_numbers_get_ramps_in_units_of_the_network_and_classes_none(tmp_path):
    rng = np.random.default_rng(0)
    x = np.c_[1000 + 50 * rng.normal(size=200), rng.integers(0, 2, 200)]
    y = (x[:, 0] > 1010) * 1.0
    model = ub.UDNRegressor(epochs=3, width=8, random_state=0).fit(x, y)
    (found,) = model.model_.layers.knots
    assert len(found) == 17
    assert -4 < found[0] < -1.5
    assert 1.5 < found[-1] < 4
    assert model.model_.network.hidden["1"].waves.ramps.abs().sum() > 0
    model.save(tmp_path / "m.udn")
    again = ub.UDNRegressor.load(tmp_path / "m.udn", device="cpu")
    assert again.model_.layers.knots == [found]
    assert np.array_equal(again.predict(x), model.predict(x))
    two = ub.UDNRegressor(epochs=2, width=8, random_state=0, n_members=2).fit(x, y)
    assert [m.layers.knots for m in two.members_] == [two.model_.layers.knots] * 2
    shared = ub.UDNRegressor(epochs=1, width=8, n_members=2, ensemble="shared").fit(x, y)
    assert len(shared.model_.layers.knots) == 1
    assert ub.UDNClassifier(epochs=1, width=8).fit(x, y.astype(int)).model_.layers.knots == []
    assert ub.UDNRegressor(epochs=1, width=8, preset="settled").fit(x, y).predict(x).shape == (200,)


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
    layer = ub.TableDense(2, 3, 1, embedded=[1], knots=[[-0.3, 0.1, 0.9]]).hidden(1).double()
    layer.waves.ramps.data.normal_()
    x = torch.randn(4, 2, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)
    assert set(names) >= {"waves.factor", "waves.ramps", "waves.phase", "linear.weight"}

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
        ({"knots": [[0.0, 1.0]]}, "of the 2 embedded columns"),
        ({"knots": [[0.0, 1.0], [1.0]]}, "two or more numbers"),
        ({"knots": [[0.0, 1.0], [1.0, 1.0]]}, "larger than the one before"),
        ({"knots": [[0.0, 1.0], [1.0, math.inf]]}, "two or more numbers"),
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
    tables, settled = PRESETS["tables"], PRESETS["settled"]
    built = tables.built(4, 8, 1, embedded=tables.embeds([1, 3]))
    assert isinstance(built, ub.TableDense)
    assert built.embedded == [1, 3]
    assert not tables.embeds(range(300))
    assert not settled.embeds([1])
    assert type(settled.built(4, 8, 1)) is ub.PreNormDense


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


def test_inspect_counts_knots():
    described = {"kind": "TableDense", "config": ub.TableDense(2, 4, 1, knots=KNOTS).config()}
    assert "knots=[2 lists of 2 to 4 numbers]" in inspect._part(described)
    described["config"]["knots"] = KNOTS[:1]
    assert "knots=[1 list of 4 numbers]" in inspect._part(described)


@pytest.mark.parametrize("bad", ["x", [[1.0]], [[1.0, 1.0]], [[0.0, float("nan")]], [[0.0, "1"]]])
def test_knots_of_a_file_are_checked(bad):
    described = {"kind": "TableDense", "config": ub.TableDense(1, 4, 1).config()}
    assert check_part("layers")(described, "layers") == described
    described["config"]["knots"] = [[0.0, 1.0]]
    assert check_part("layers")(described, "layers") == described
    described["config"]["knots"] = bad
    with pytest.raises(FileError, match="knots"):
        check_part("layers")(described, "layers")


def _classes_of(kind):
    return {"classes": [0, 1]} if kind is ub.UDNClassifier else {}


@pytest.mark.parametrize(
    ("kind", "start", "price"),
    [(ub.UDNRegressor, (3.0, 2.0), 1.0), (ub.UDNClassifier, (1.0, 1.0), 0.5)],
)
def test_classes_begin_with_fewer_layers_than_numbers(monkeypatch, kind, start, price):
    """Of numbers several layers are mostly worth something, of classes one is mostly enough."""
    seen = []

    class Noted(HeldOutAscent):
        def check(self, model):
            super().check(model)
            seen.append((*self._rho, self.price))

    monkeypatch.setattr(presets, "HeldOutAscent", Noted)
    x = np.random.default_rng(0).normal(size=(60, 2))
    kind(random_state=0, epochs=1, n_members=1).fit(x, (x[:, 0] > 0) + 0)
    assert set(seen) == {(*start, price)}
    family = PRESETS["tables"].start(is_classes=kind is ub.UDNClassifier)
    assert (float(family.place), float(family.spread)) == pytest.approx(start)
    seen.clear()
    own = kind(random_state=0, epochs=1, n_members=1, layers=lambda i, o: ub.Dense(i, 4, o))
    own.fit(x, (x[:, 0] > 0) + 0)
    assert set(seen) == {(*ub.Dense.reference, 1.0)}  # layers of one's own say where depth begins
    # Where nothing can add a layer, classes begin as numbers do.
    alone = kind(random_state=0, epochs=1, validation_fraction=0.0).fit(x, (x[:, 0] > 0) + 0)
    further = kind(random_state=0).partial_fit(x, (x[:, 0] > 0) + 0, **_classes_of(kind))
    for model in (alone, further):
        assert model.depth_mean_ == pytest.approx(float(ub.TruncatedNormal(3.0, 2.0).mean()), 0.05)
    nested = kind().set_params(depth__spread=start[1] + 0.5)
    assert nested.get_params()["depth__place"] == pytest.approx(start[0])
