"""Least squares at the end of a regressor's training: exact, judged by held-out rows."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import unbounded as ub
from unbounded import UDNRegressor
from unbounded.estimators import closing
from unbounded.estimators.closing import _best, _Ridge, _with_constant
from unbounded.layers.kernels import KernelHead
from unbounded.layers.tables import RampedHead

QUICK = {"width": 16, "random_state": 0, "epochs": 12, "device": "cpu"}


def stairs(rows, seed=0, noise=0.05):
    """A number that jumps at many places along one column: learnt late by steps of an optimiser."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 3))
    jumps = np.random.default_rng(7).normal(size=41)
    return x, jumps[(20 * (x[:, 0] + 1)).astype(int)] + x[:, 1] + noise * rng.normal(size=rows)


def is_closed(head):
    """Whether a head has ramps, with or without nearness to rows."""
    return type(head.rest if type(head) is KernelHead else head) is RampedHead


@pytest.fixture(scope="module")
def pair():
    """The same training, without and with the last step."""
    x, y = stairs(900)
    options = {**QUICK, "epochs": 20}
    return x, y, *(UDNRegressor(least_squares=c, **options).fit(x, y) for c in (False, True))


@pytest.mark.parametrize("others", [0, 3, 30])
@pytest.mark.parametrize("shape", [(60, 8), (20, 50)])
def test_least_squares_are_those_of_scikit_learn(shape, others):
    rng = np.random.default_rng(0)
    features, left = rng.normal(size=shape), rng.normal(size=(shape[0], 2)) + 3
    further = rng.normal(size=(shape[0], others)) + 2 if others else None
    every = _Ridge(_with_constant(features))(left, further)
    if further is not None:
        features = np.hstack([further, features])
    for strength, found in zip(closing._STRENGTHS, every, strict=True):
        if strength < 0.1:
            continue
        expected = Ridge(alpha=strength).fit(features, left)
        np.testing.assert_allclose(found[:-1], expected.coef_.T, rtol=1e-3, atol=1e-5)
        constant = closing._CONSTANT * found[-1]
        np.testing.assert_allclose(constant, expected.intercept_, rtol=1e-3)


def test_rows_that_count_twice_are_there_twice():
    x, y = stairs(500)
    weights = np.random.default_rng(1).integers(1, 3, size=500)
    model = UDNRegressor(**QUICK).fit(x, y, sample_weight=weights)
    assert type(model.model_.network.heads["1"]) is KernelHead
    twice = UDNRegressor(**QUICK).fit(np.repeat(x, weights, 0), np.repeat(y, weights))
    np.testing.assert_array_equal(model.predict(x), twice.predict(x))
    # Weights have a say in it.
    other = UDNRegressor(**QUICK).fit(x, y)
    assert not np.array_equal(model.predict(x), other.predict(x))


def test_what_held_out_rows_do_not_confirm_is_left():
    rng = np.random.default_rng(0)
    before, ones = rng.normal(size=(400, 1)), np.ones(400)
    right = np.stack([0.1 * before, 0.6 * before, 1.9 * before])
    assert _best(before, right, ones) == 1
    assert _best(before, -right, ones) is None
    noise = rng.normal(size=(3, 400, 1))
    assert _best(before, noise, ones) is None
    # A gain of one row alone is none that is sure; a row that counts for many is.
    lucky = np.zeros((1, 400, 1))
    lucky[0, 5] = before[5]
    assert _best(before, lucky, ones) is None


def test_numbers_beyond_all_bounds_change_nothing(monkeypatch):
    before, changes = np.ones((40, 1)), np.full((2, 40, 1), np.nan)
    assert _best(before, changes, np.ones(40)) is None
    x, y = stairs(300)
    plain = UDNRegressor(least_squares=False, **QUICK).fit(x, y).predict(x)

    def fails(_):
        raise torch.linalg.LinAlgError("no eigenvalues")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", fails)
    np.testing.assert_array_equal(UDNRegressor(**QUICK).fit(x, y).predict(x), plain)


def test_a_time_limit_leaves_it_out_where_it_would_take_long(monkeypatch):
    x, y = stairs(300)
    model = UDNRegressor(time_limit=60, **QUICK).fit(x, y)
    assert is_closed(model.model_.network.heads["1"])
    monkeypatch.setattr(closing, "_SPEED", 1e4)
    model = UDNRegressor(time_limit=60, **QUICK).fit(x, y)
    assert type(model.model_.network.heads["1"]) is torch.nn.Linear


def test_it_finds_what_training_left(pair):
    _, _, plain, closed = pair
    fresh, truth = stairs(2000, seed=5, noise=0.0)
    errors = [np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (plain, closed)]
    assert errors[1] < 0.8 * errors[0]
    assert all(is_closed(h) for h in closed.model_.network.heads.values())
    assert plain.depth_mean_ == closed.depth_mean_
    assert plain.history_.rows[-1]["elbo"] == closed.history_.rows[-1]["elbo"]
    # Noise is calibrated afterwards: intervals hold what they say, and are narrower.
    low, high = closed.predict_quantiles(fresh, [0.05, 0.95])
    wide = np.mean(np.diff(plain.predict_quantiles(fresh, [0.05, 0.95]), axis=0))
    assert np.mean(high - low) < wide
    assert np.mean((low <= truth) & (truth <= high)) > 0.85
    low, high = closed.predict_interval(fresh, 0.9)
    assert np.mean((low <= truth) & (truth <= high)) > 0.85


def test_means_of_depths_and_components_add_up(pair):
    x, _, _, closed = pair
    mean, std = closed.predict(x[:50], return_std=True)
    by_depth = closed.predict_by_depth(x[:50])
    probs = closed.depth_probs_[closed.depths_[0] - 1 :]
    np.testing.assert_allclose(np.tensordot(probs, by_depth, 1), mean, rtol=1e-6, atol=1e-8)
    q, means, scales = closed.predict_components(x[:50])
    np.testing.assert_allclose(q @ means, mean, rtol=1e-6, atol=1e-8)
    spread = np.sqrt(q @ (means**2 + scales**2) - mean**2)
    np.testing.assert_allclose(spread, std, rtol=1e-5)


def test_few_rows_many_rows_files_pickles_and_copies_agree(pair, tmp_path):
    x, _, _, closed = pair
    expected = closed.predict(x)  # more rows than NumPy takes
    np.testing.assert_allclose(closed.predict(x[:7]), expected[:7], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(closed.predict(x[:1]), expected[:1], rtol=1e-11, atol=1e-11)
    closed.save(tmp_path / "model.udn")
    for again in (
        UDNRegressor.load(tmp_path / "model.udn"),
        pickle.loads(pickle.dumps(closed)),
        copy.deepcopy(closed),
    ):
        np.testing.assert_array_equal(again.predict(x), expected)
        assert again.model_.layers.head_knots == closed.model_.layers.head_knots
    # The rows go through NumPy: a model of the same heads without ramps would not agree.
    frozen = closed.model_.freeze()
    outputs, _ = frozen(torch.from_numpy(closed.input_scaling_.apply(x[:3])).float())
    head = frozen.heads[0]
    with torch.no_grad():
        (head.rest if type(head) is KernelHead else head).ramps.zero_()
        if type(head) is KernelHead:
            head.values.zero_()
    other, _ = frozen(torch.from_numpy(closed.input_scaling_.apply(x[:3])).float())
    assert (outputs[0] - other[0]).abs().max() > 1e-3


def test_members_and_several_targets(tmp_path):
    x, y = stairs(600)
    both = np.column_stack([y, -2 * y + x[:, 2]])
    model = UDNRegressor(n_members=2, **QUICK).fit(x, both)
    assert all(is_closed(m.network.heads["1"]) for m in model.members_)
    many = model.predict(x)
    np.testing.assert_allclose(model.predict(x[:5]), many[:5], rtol=1e-10, atol=1e-10)
    model.save(tmp_path / "two.udn")
    np.testing.assert_array_equal(UDNRegressor.load(tmp_path / "two.udn").predict(x), many)


def test_training_goes_on_from_closed_heads(pair):
    x, y, _, closed = pair
    model = copy.deepcopy(closed)
    before = model.predict(x)
    model.partial_fit(x[:200], y[:200])
    after = model.predict(x)
    assert not np.array_equal(before, after)
    fresh, truth = stairs(1000, seed=5)
    error = [np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (closed, model)]
    assert error[1] < 1.1 * error[0]
    warm = UDNRegressor(warm_start=True, **QUICK).fit(x, y)
    first = np.sqrt(np.mean((warm.predict(x) - y) ** 2))
    assert np.sqrt(np.mean((warm.fit(x, y).predict(x) - y) ** 2)) < 1.3 * first


def test_who_has_no_such_heads_is_left_alone():
    x, y = stairs(400)
    for options in (
        {"preset": "settled"},
        {"preset": "paper"},
        {"layers": ub.PreNormDense(3, 8, 1)},
        {"ensemble": "shared", "n_members": 2},
        {"refit": True},
        {"validation_fraction": 0.0},
        {"least_squares": False},
    ):
        model = UDNRegressor(**{**QUICK, "epochs": 2, **options}).fit(x, y)
        assert RampedHead not in {type(h) for h in model.model_.network.heads.values()}
    few = UDNRegressor(**QUICK).fit(*stairs(60))
    assert RampedHead not in {type(h) for h in few.model_.network.heads.values()}


def test_ramped_heads_are_linear_heads_and_interpolation():
    torch.manual_seed(0)
    layers = ub.TableDense(3, 4, 2, embedded=[0, 2], head_knots=[[-1.0, 0.0, 2.0], [0.5, 1.0]])
    head = layers.head(1).double()
    assert type(head) is RampedHead
    state, x = torch.randn(9, 4).double(), 2 * torch.randn(9, 3).double()
    torch.testing.assert_close(head(state, x), torch.zeros(9, 2).double())
    with torch.no_grad():
        head.ramps.normal_()
        head.linear.weight.normal_()
    rest = head(state, x) - head.linear(state)
    ramps = head.ramps.detach().reshape(2, 2, 2).numpy()
    for target in range(2):
        first = np.interp(x[:, 0], [-1, 0, 2], np.r_[0, np.cumsum(ramps[0, :, target])])
        second = np.interp(x[:, 2], [0.5, 1.0], [0, float(ramps[1, 0, target])])
        # The padded ramp of the second column, like all, starts from −½.
        shift = -0.5 * float(ramps[..., target].sum())
        np.testing.assert_allclose(rest[:, target].detach(), first + second + shift, rtol=1e-9)
    again = ub.TableDense(**layers.config())
    assert again.head_knots == layers.head_knots
    with pytest.raises(ValueError, match="of the 2 embedded columns"):
        ub.TableDense(3, 4, 2, embedded=[0, 2], head_knots=[[0.0, 1.0]])


def test_exported_models_have_closed_heads(pair, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    x, _, _, closed = pair
    ub.export(closed, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (given,) = session.get_inputs()
    kind = np.float64 if "double" in given.type else np.float32
    found = session.run(["mean"], {given.name: x[:40].astype(kind)})[0]
    np.testing.assert_allclose(found, closed.predict(x[:40]), rtol=1e-4, atol=1e-4)


def test_members_gain_together_or_not_at_all(tmp_path):
    """Judged one by one, some would have ramps and others not, and no file could hold them."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 3))
    y = x[:, 0] + 0.58 * np.sign(np.sin(5 * x[:, 1])) + 0.7 * rng.normal(size=300)
    options = {**QUICK, "epochs": 6, "n_members": 4}
    model = UDNRegressor(**options).fit(x, y)
    kinds = {type(head) for m in model.members_ for head in m.network.heads.values()}
    assert len(kinds) == 1
    model.save(tmp_path / "four.udn")
    again = UDNRegressor.load(tmp_path / "four.udn")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_columns_of_one_value_have_a_ramp_where_no_value_is(tmp_path, monkeypatch):
    monkeypatch.setattr(closing, "_MOST_LEARNT", 200)
    x, y = stairs(900)
    x[:, 2] = 0
    x[:2, 2] = 1, 2  # too few to be among those that are looked at
    model = UDNRegressor(**{**QUICK, "random_state": 1}).fit(x, y)
    assert is_closed(model.model_.network.heads["1"])
    assert min(map(len, model.model_.layers.head_knots)) >= 2
    model.save(tmp_path / "model.udn")
    again = UDNRegressor.load(tmp_path / "model.udn")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    # The same of the first layer, where values are one in single precision.
    x[:, 2] = 1e8 + np.arange(900) % 3
    UDNRegressor(standardize=False, **{**QUICK, "epochs": 1}).fit(x, y)


def test_layers_of_ones_own_stay_as_they_are(tmp_path):
    x, y = stairs(500)
    layers = ub.TableDense(3, 16, 1)
    plain = UDNRegressor(layers=layers, least_squares=False, **QUICK).fit(x, y)
    closed = UDNRegressor(layers=layers, **QUICK).fit(x, y)
    assert layers.head_knots == []
    assert closed.model_.layers.head_knots == closed.model_.network.layers.head_knots != []
    first = closed.predict(x)
    np.testing.assert_array_equal(closed.fit(x, y).predict(x), first)
    plain.save(tmp_path / "plain.udn")
    again = UDNRegressor.load(tmp_path / "plain.udn")
    np.testing.assert_array_equal(again.predict(x), plain.predict(x))


def test_many_depths_of_little_mass():
    x, y = stairs(250)
    family = ub.FiniteDepth(120)
    options = {**QUICK, "width": 4, "epochs": 1}
    model = UDNRegressor(depth=family, **options).fit(x, y)
    assert np.isfinite(model.predict(x)).all()


def test_noise_that_is_not_calibrated_keeps_its_mean():
    x, y = stairs(400)
    from unbounded.likelihoods import FixedNoise, InputNoise

    for options in (
        {"calibrate": False},
        {"likelihood": ub.Gaussian(InputNoise())},
        {"likelihood": ub.Gaussian(FixedNoise(0.5))},
    ):
        model = UDNRegressor(**QUICK, **options).fit(x, y)
        assert type(model.model_.network.heads["1"]) is torch.nn.Linear
    learnt = UDNRegressor(likelihood=ub.Gaussian(), **QUICK).fit(x, y)
    assert type(learnt.model_.network.heads["1"]) is not torch.nn.Linear


def test_rows_of_hardly_any_weight_do_not_count():
    x, y = stairs(400)
    weights = np.full(400, 1e-9)
    weights[:60] = 1.0
    model = UDNRegressor(**QUICK).fit(x, y, sample_weight=weights)
    assert type(model.model_.network.heads["1"]) is torch.nn.Linear


def test_heads_with_other_knots_are_left_to_torch(pair):
    x, _, _, closed = pair
    model = copy.deepcopy(closed)
    heads = model.model_.network.heads
    linear, knots = heads["1"].linear, [[-1.0, 1.0]] * 3
    heads["1"] = RampedHead(linear, [0, 1, 2], knots).eval()
    with torch.no_grad():
        heads["1"].ramps.fill_(0.3)
    np.testing.assert_allclose(model.predict(x[:5]), model.predict(x)[:5], rtol=1e-9, atol=1e-9)
