"""Nearness to rows at the end of a regressor's training: exact, judged by held-out rows."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import laplacian_kernel

import unbounded as ub
from unbounded import UDNRegressor
from unbounded.estimators import metric as metrics
from unbounded.estimators import nearness as near
from unbounded.estimators.metric import Metric, Neighbours, Table, factor_of, find_metric
from unbounded.estimators.nearness import Found, choose, weigh
from unbounded.layers import kernels
from unbounded.layers.kernels import KernelHead

QUICK = {"width": 16, "random_state": 0, "epochs": 12, "device": "cpu"}


def squares(rows, seed=0, noise=0.02):
    """A number of its own for each square of a board: edges along two columns together."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    board = np.random.default_rng(11).normal(size=(6, 6))
    places = (3 * (x + 1)).astype(int)
    return x, board[places[:, 0], places[:, 1]] + noise * rng.normal(size=rows)


def table(rows, columns=3, targets=1, seed=0, weights=None):
    """Rows with numbers that depend on the columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(2 * x[:, :1]) + 0.1 * rng.normal(size=(rows, targets))
    counts = np.ones(rows) if weights is None else np.asarray(weights, float)
    return Table(*map(torch.from_numpy, (x, y, counts, np.zeros_like(y))))


def solve(found, metric, right):
    """Values of rows, found apart."""
    return torch.cholesky_solve(right, factor_of(found, metric))


@pytest.fixture(scope="module")
def board():
    """Closed by nearness to rows."""
    x, y = squares(700)
    return x, y, UDNRegressor(**{**QUICK, "epochs": 20}).fit(x, y)


# The metric


@pytest.mark.parametrize("scales", [None, torch.tensor([0.5, 1.0, 2.0]).double()])
@pytest.mark.parametrize("targets", [1, 2])
def test_slopes_of_the_leave_one_out_error(scales, targets):
    found = table(50, targets=targets, weights=np.arange(50) % 3 + 1)
    neighbours = Neighbours(found, torch.arange(20), 7, scales)
    logs = np.array([-0.3, -2.0] if scales is None else [-0.3, 0.2, 0.1, -2.0])
    _, slopes = neighbours.at(logs)
    for place, slope in enumerate(slopes):
        step = np.zeros_like(logs)
        step[place] = 1e-5
        numeric = (neighbours.at(logs + step)[0] - neighbours.at(logs - step)[0]) / 2e-5
        assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100), st.floats(0.1, 3.0), st.floats(0.01, 1.0))
def test_leave_one_out_errors_are_those_of_a_gaussian_process(seed, scale, strength):
    """With all other rows as the nearest ones."""
    found = table(25, seed=seed)
    x, y = found.x.numpy(), found.y.numpy()[:, 0]
    gram = laplacian_kernel(x, x, gamma=scale) + metrics.CONSTANT
    errors = []
    for row in range(25):
        rest = np.arange(25) != row
        ridge = KernelRidge(kernel="precomputed", alpha=strength)
        ridge.fit(gram[np.ix_(rest, rest)], y[rest])
        errors.append(y[row] - ridge.predict(gram[row : row + 1, rest])[0])
    logs = np.log([*[scale] * 3, strength])
    neighbours = Neighbours(found, torch.arange(25), 24, torch.full((3,), scale).double())
    score = 25 / 2 * math.log(np.mean(np.square(errors)))
    assert neighbours.at(logs)[0] == pytest.approx(score, rel=1e-8, abs=1e-8)


def test_columns_that_say_much_have_large_scales():
    found = find_metric(table(400, columns=4))
    assert found is not None
    assert float(found.scales[0]) > 3 * float(found.scales[1:].max())
    # One scale for all where columns are alike.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    y = (np.abs(x).sum(1) + 0.3 * rng.normal(size=400))[:, None]
    alike = find_metric(Table(*map(torch.from_numpy, (x, y, np.ones(400), 0 * y))))
    assert float(alike.scales.max()) < 3 * float(alike.scales.min())


def test_a_metric_of_many_columns_has_one_scale():
    wide = find_metric(table(200, columns=900))
    assert len(wide.scales) == 900
    assert len(wide.scales.unique()) == 1
    one = find_metric(table(200, columns=1))
    assert len(one.scales) == 1


def test_rows_that_are_all_the_same_have_no_metric():
    same = table(200)._replace(x=torch.ones(200, 3).double())
    assert find_metric(same) is None
    silent = table(200)._replace(y=torch.zeros(200, 1).double())
    assert find_metric(silent) is None
    huge = table(200)._replace(y=torch.full((200, 1), 1e200, dtype=torch.float64))
    assert find_metric(huge) is None
    assert near.add_nearness([], same, table(40), True) is None


# What is added


@pytest.mark.parametrize("weights", [None, np.arange(60) % 3 + 1.0])
def test_values_are_those_of_a_gaussian_process(weights):
    found, fresh = table(60, weights=weights), table(20, seed=1)
    metric = Metric(torch.full((3,), 0.7).double(), 0.05)
    values = solve(found, metric, found.y)
    gram = laplacian_kernel(found.x, found.x, gamma=0.7) + metrics.CONSTANT
    across = laplacian_kernel(fresh.x, found.x, gamma=0.7) + metrics.CONSTANT
    noise = np.diag(0.05 / found.weights.numpy())
    expected = across @ np.linalg.solve(gram + noise, found.y.numpy())
    told = metrics.foretell(fresh.x, found.x, metric, values)
    np.testing.assert_allclose(told, expected, rtol=1e-7)
    if weights is None:  # and of scikit-learn's, which has no constant of this kind
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        one = table(60, columns=1)
        peer = GaussianProcessRegressor(
            Matern(1 / 0.7, nu=0.5) + ConstantKernel(metrics.CONSTANT), alpha=0.05, optimizer=None
        ).fit(one.x, one.y)
        metric = Metric(torch.tensor([0.7]).double(), 0.05)
        told = metrics.foretell(fresh.x[:, :1], one.x, metric, solve(one, metric, one.y))
        np.testing.assert_allclose(told[:, 0], peer.predict(fresh.x[:, :1]), rtol=1e-7)


def test_copies_are_judged_as_if_one_had_not_been_there():
    """By the closed form, beside fits with one copy less."""
    counts = np.ones(40)
    counts[:6] = [2, 3, 2, 4, 2, 2]
    learnt = table(40, weights=counts)
    learnt = learnt._replace(means=0.5 * learnt.y)
    # Held-out rows that neither gain nor lose: those far away, where the network is right.
    held = table(30, seed=2)
    held = held._replace(means=held.y + 0.5 * (torch.arange(30) % 2 * 2 - 1)[:, None])
    metric = Metric(torch.full((3,), 1.5).double(), 0.3)
    found = weigh(learnt, held, metric)[1]
    share = found.share
    assert share == 0.75
    gains = []
    for row in range(6):
        fewer = learnt.weights.clone()
        fewer[row] -= 1
        rest = learnt._replace(weights=fewer)
        values = solve(rest, metric, rest.y - share * rest.means)
        told = metrics.foretell(rest.x, rest.x, metric, values) + share * rest.means
        gains.append(float((rest.y - rest.means)[row] ** 2 - (rest.y - told)[row] ** 2))
    told = metrics.foretell(held.x, learnt.x, metric, found.values) + share * held.means
    before = float(((held.y - held.means) ** 2).mean())
    fresh = before - float(((held.y - told) ** 2).mean())
    # A kernel by itself, to rows that were learnt from but for themselves, and to held-out ones.
    values = solve(learnt, metric, learnt.y)
    inverse = np.linalg.inv((factor_of(learnt, metric) @ factor_of(learnt, metric).T).numpy())
    own = np.average((values[:, 0].numpy() / np.diag(inverse)) ** 2, weights=counts)
    alone = held.y - metrics.foretell(held.x, learnt.x, metric, values)
    fresh -= (1 - share) ** 2 * max(0.0, own - float((alone**2).mean()))
    assert found.fresh == pytest.approx(fresh / before)
    returning = counts[:6].sum() / counts.sum()
    expected = (1 - returning) * fresh + returning * np.average(gains, weights=counts[:6])
    assert found.gain == pytest.approx(expected / before)
    # Weights that are no counts tell of no copies.
    assert not learnt._replace(weights=learnt.weights + 0.5).copies.any()


def test_what_makes_held_out_rows_worse_is_not_taken():
    learnt, held = table(100), table(80, seed=1)
    metric = Metric(torch.full((3,), 1.0).double(), 0.1)

    def chosen(rows, judges, doubt=0.0):
        return choose(weigh(rows, judges, metric), judges.weights, doubt)

    right, known = (part._replace(means=part.y) for part in (held, learnt))
    assert chosen(known, right) is None  # no error that could fall
    noise = learnt._replace(y=torch.randn_like(learnt.y), means=torch.zeros_like(learnt.y))
    flat = held._replace(y=torch.zeros_like(held.y) + 0.01, means=torch.zeros_like(held.y))
    assert chosen(noise, flat) is None
    far = held._replace(means=held.y + 3 * torch.randn_like(held.y))
    assert chosen(learnt._replace(means=torch.randn_like(learnt.y)), far).share == 0.0


def test_more_of_the_network_stays_where_that_is_as_good():
    found = table(5)
    metric = Metric(torch.ones(3).double(), 0.1)
    each = torch.tensor([1.0, 2.0, 1.5, 0.5, 1.0]).double()
    less = each - torch.tensor([0.4, -0.3, 0.3, -0.2, 0.1]).double()
    surely = each - 0.5

    def offered(share, left, fresh):
        return Found(found, metric, share, found.y, left, fresh, 0.05, fresh)

    weights = torch.ones(5).double()
    tried = [offered(1.0, each, 0.05), offered(0.5, less, 0.06)]
    assert choose(tried, weights).share == 1.0
    tried = [offered(1.0, each, 0.05), offered(0.5, surely, 0.09)]
    assert choose(tried, weights).share == 0.5
    # Copies alone do not decide: what is far better for other rows stays.
    other = Found(found, Metric(100 * metric.scales, 0.1), 1.0, found.y, each, 0.0, 0.01, 0.9)
    assert choose([offered(0.5, surely, 0.3), other], weights).metric is metric
    assert choose([offered(0.5, surely, 0.005), other], weights) is other


def test_heads_add_nearness_to_rows():
    torch.manual_seed(0)
    rows, scales = [[0.0, 1.0, 2.0], [1.0, -1.0, 0.5]], [0.5, 0.0, 2.0]
    knots = {"embedded": [0], "head_knots": [[0.0, 1.0]]}
    for options in ({}, knots):
        layers = ub.TableDense(3, 4, 2, head_rows=rows, head_scales=scales, **options)
        head = layers.head(1).double()
        assert type(head) is KernelHead
        state, x = torch.randn(9, 4).double(), torch.randn(9, 3).double()
        assert not head(state, x).any()
        with torch.no_grad():
            for tensor in (*head.parameters(), head.values):
                tensor.normal_()
        rest = head.rest(state, x) if options else head.rest(state)
        apart = [[abs(a - b) @ np.array(scales) for b in np.array(rows)] for a in x.numpy()]
        expected = rest + torch.tensor(np.exp(-np.array(apart))) @ head.values
        torch.testing.assert_close(head(state, x), expected)
        again = ub.TableDense(**layers.config())
        assert (again.head_rows, again.head_scales) == (rows, scales)
    for words, wrong in (
        ("3 numbers each", {"head_rows": [[1.0]], "head_scales": scales}),
        ("must be finite", {"head_rows": [[1.0, 2.0, math.nan]], "head_scales": scales}),
        ("need head_scales, 3", {"head_rows": rows}),
        ("at least 0", {"head_rows": rows, "head_scales": [1.0, 1.0, math.inf]}),
        ("at least 0", {"head_rows": rows, "head_scales": [1.0, 1.0, -1.0]}),
        ("more than", {"head_rows": [[0.0] * 3] * 50_000, "head_scales": scales}),
    ):
        with pytest.raises(ValueError, match=words):
            ub.TableDense(3, 4, 2, **wrong)


def test_rows_are_compared_once_a_pass_and_in_every_precision(board, monkeypatch):
    x, _, closed = board
    calls, real = [], kernels.nearness

    def counted(*given):
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(kernels, "nearness", counted)
    frozen, inputs = (
        closed.model_.freeze(),
        torch.from_numpy(closed.input_scaling_.apply(x)).float(),
    )
    assert len(frozen.heads) > 1
    with torch.no_grad():
        outputs, _ = frozen(inputs)
    assert len(calls) == 1
    # With gradients each head compares by itself: it may be computed again.
    with_gradients, _ = frozen(inputs.requires_grad_())
    assert len(calls) == 1 + len(frozen.heads)
    torch.testing.assert_close(with_gradients.detach(), outputs)
    half, _ = closed.model_.freeze().bfloat16()(inputs.detach().bfloat16())
    assert (half.float() - outputs)[..., 0].std() < 0.5
    # As other programs compute it.
    for many in (1, 3, 100):
        rows, points = torch.randn(7, many), torch.randn(5, many)
        expected = torch.cdist(points, rows, p=1.0)
        torch.testing.assert_close(kernels._distances(points, rows), expected)


def test_a_time_limit_may_leave_out_nearness_alone(monkeypatch):
    x, y = squares(400)
    monkeypatch.setattr(near, "seconds", lambda rows: 1e9)
    model = UDNRegressor(time_limit=60, **QUICK).fit(x, y)
    assert type(model.model_.network.heads["1"]) is not KernelHead
    assert type(UDNRegressor(**QUICK).fit(x, y).model_.network.heads["1"]) is KernelHead


def test_nearness_finds_edges_of_columns_together(board):
    x, y, closed = board
    assert {type(h) for h in closed.model_.network.heads.values()} == {KernelHead}
    fresh, truth = squares(2000, seed=5, noise=0.0)
    plain = UDNRegressor(least_squares=False, **{**QUICK, "epochs": 20}).fit(x, y)
    errors = [np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (plain, closed)]
    assert errors[1] < 0.8 * errors[0]
    low, high = closed.predict_interval(fresh, 0.9)
    # A tenth of 105 held-out rows is outside: three standard errors are 9 %.
    assert np.mean((low <= truth) & (truth <= high)) > 0.81


def test_each_value_of_a_column_may_have_an_effect_of_its_own():
    """As the vacuum of a power plant, whose values stand for some hours of one plant."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    levels = rng.permutation(150) / 50
    which = rng.integers(150, size=900)
    x[:, 1] = levels[which]
    y = np.tanh(x[:, 0]) + rng.normal(size=150)[which] + 0.1 * rng.normal(size=900)
    train, test = slice(700), slice(700, None)
    options = {**QUICK, "epochs": 20}
    plain = UDNRegressor(least_squares=False, **options).fit(x[train], y[train])
    closed = UDNRegressor(**options).fit(x[train], y[train])
    errors = [np.sqrt(np.mean((m.predict(x[test]) - y[test]) ** 2)) for m in (plain, closed)]
    assert errors[1] < 0.75 * errors[0]
    scales = closed.model_.layers.head_scales
    assert scales[1] > 5 * max(scales[0], scales[2])


def test_rows_that_come_back_are_remembered():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)).round(1)
    y = x[:, 0] + rng.normal(size=600)  # what is not in the columns comes back with the row
    again = rng.integers(600, size=300)
    train = np.concatenate([np.arange(600), again])
    closed = UDNRegressor(**QUICK).fit(x[train], y[train])
    assert type(closed.model_.network.heads["1"]) is KernelHead
    known = np.sqrt(np.mean((closed.predict(x[again]) - y[again]) ** 2))
    assert known < 0.3
    fresh = rng.normal(size=(2000, 4))
    plain = UDNRegressor(least_squares=False, **QUICK).fit(x[train], y[train])
    errors = [np.sqrt(np.mean((m.predict(fresh) - fresh[:, 0]) ** 2)) for m in (plain, closed)]
    assert errors[1] < errors[0] + 0.1
    # Intervals are those of rows that have not been met.
    low, high = closed.predict_interval(fresh, 0.9)
    truth = fresh[:, 0] + rng.normal(size=2000)
    assert 0.83 < np.mean((low <= truth) & (truth <= high)) < 0.97


# Held-out rows are learnt from in the end


def held_out(model):
    """A head, and whether rows that were held out have a part in it."""
    head = model.model_.network.heads[str(model.model_.support()[0])]
    return head, bool(head.added.any())


def test_each_held_out_row_is_judged_by_all_others():
    """By the closed form, beside fits without each of them."""
    rows, held = table(50, targets=2), table(12, targets=2, seed=1, weights=np.arange(12) % 2 + 1)
    held = held._replace(means=0.3 * held.y)
    metric, share = Metric(torch.tensor([1.0, 0.5, 0.1]).double(), 0.1), 0.75
    before = solve(rows, metric, rows.y - share * rows.means)
    both, values, added, moved = near.with_held(held, rows, metric, share, before)
    torch.testing.assert_close(values, solve(both, metric, both.y - share * both.means))
    torch.testing.assert_close(values - added, torch.cat([before, torch.zeros(12, 2)]))
    told = metrics.foretell(held.x, both.x, metric, values) + share * held.means
    for row in range(12):
        rest = both.take(torch.arange(62) != 50 + row)
        alone = solve(rest, metric, rest.y - share * rest.means)
        without = metrics.foretell(held.x[[row]], rest.x, metric, alone) + share * held.means[row]
        torch.testing.assert_close((told - moved)[row], without[0])


def test_held_out_rows_are_learnt_from_and_still_judge(board, monkeypatch):
    x, y, closed = board
    options = {**QUICK, "epochs": 20}
    real = near.add_nearness

    def without(models, learnt, held, refit, left, *rest):
        return real(models, learnt, held, False, left)

    monkeypatch.setattr(near, "add_nearness", without)
    other = UDNRegressor(**options).fit(x, y)
    assert not held_out(other)[1]
    assert held_out(closed)[1]
    rows = len(other.model_.layers.head_rows)
    assert closed.model_.layers.head_rows[:rows] == other.model_.layers.head_rows
    assert len(closed.model_.layers.head_rows) == rows + 105
    # It is better by them, and knows that it is no better than that.
    fresh, truth = squares(2000, seed=5)
    errors = [np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (other, closed)]
    assert errors[1] < errors[0]
    assert np.sqrt(np.mean((closed.predict(x) - y) ** 2)) < 0.5 * errors[1]
    low, high = closed.predict_interval(fresh, 0.9)
    assert 0.84 < np.mean((low <= truth) & (truth <= high)) < 0.96


def test_rows_of_an_eval_set_are_never_learnt_from(board):
    x, y, _ = board
    model = UDNRegressor(**QUICK).fit(x[:500], y[:500], eval_set=(x[500:], y[500:]))
    assert type(model.model_.network.heads["1"]) is KernelHead
    assert not held_out(model)[1]
    assert len(model.model_.layers.head_rows) == 500


@pytest.mark.parametrize("way", ["copied", "pickled", "saved"])
def test_training_goes_on_as_if_they_had_not_been_learnt_from(board, way, tmp_path):
    x, y, closed = board
    model = copy.deepcopy(closed).set_params(warm_start=True, epochs=1, lr=1e-12)
    if way == "pickled":
        model = pickle.loads(pickle.dumps(model))
    if way == "saved":
        model.save(tmp_path / "model.udn")
        model = UDNRegressor.load(tmp_path / "model.udn")
    assert held_out(model)[1]
    rows = len(model.model_.layers.head_rows)
    model.fit(x, y)
    head, added = held_out(model)
    assert not added
    assert head.values[rows - 105 :].abs().max() < 1e-6  # those that were held out
    assert head.values[: rows - 105].abs().max() > 1e-3


def test_a_further_fit_is_foreseen(board):
    x, y, _ = board
    warm = UDNRegressor(warm_start=True, **QUICK).fit(x, y)
    assert type(warm.model_.network.heads["1"]) is KernelHead
    assert not held_out(warm)[1]


@pytest.mark.parametrize("likelihood", [ub.Gaussian(), None])
def test_intervals_hold_where_rows_are_remembered(likelihood):
    """Means of held-out rows know these rows in the end: noise must not be bent along them."""
    rng = np.random.default_rng(0)
    inside = []
    for seed in range(2):
        x = rng.normal(size=(3800, 4))
        y = 0.7 * x[:, 0] + 0.7 * np.sin(2 * x[:, 1]) + 1.5 * rng.normal(size=3800)
        weights = 1.0 + (rng.random(800) < 0.25)
        model = UDNRegressor(likelihood=likelihood, **{**QUICK, "random_state": seed})
        model.fit(x[:800], y[:800], sample_weight=weights)
        assert type(model.model_.network.heads["1"]) is KernelHead
        for low, high in (
            model.predict_interval(x[800:]),
            model.predict_quantiles(x[800:], [0.05, 0.95]),
        ):
            inside.append(np.mean((low <= y[800:]) & (y[800:] <= high)))
    assert 0.84 < np.mean(inside) < 0.96


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_no_copies_do_no_harm():
    x, y = squares(600, noise=0.3)
    fresh, truth = squares(2000, seed=5, noise=0.0)
    weights = np.random.default_rng(0).integers(1, 6, size=600)
    options = {**QUICK, "epochs": 20}
    plain = UDNRegressor(least_squares=False, **options).fit(x, y, sample_weight=weights)
    closed = UDNRegressor(**options).fit(x, y, sample_weight=weights)
    errors = [np.sqrt(np.mean((m.predict(fresh) - truth) ** 2)) for m in (plain, closed)]
    assert errors[1] < 0.95 * errors[0]
    # One target for all, several times each.
    flat = UDNRegressor(**QUICK).fit(x, np.full(600, 3.0), sample_weight=np.full(600, 2.0))
    np.testing.assert_allclose(flat.predict(x), 3.0, atol=1e-3)


def test_few_rows_of_many_columns_take_little_memory():
    """Distances are summed one column after the other."""
    wide = table(430, columns=300)
    neighbours = Neighbours(wide, torch.arange(430), 40, None)
    assert neighbours.pairs.shape == (1, 430 * 780)
    near_x = torch.cdist(wide.x, wide.x, p=1.0)
    nearest = near_x.fill_diagonal_(math.inf).topk(40, largest=False).values
    torch.testing.assert_close(neighbours.own.view(430, 40).sort(1).values, nearest)


def test_whatever_goes_wrong_the_training_is_kept(board, monkeypatch):
    x, y, _ = board

    def fails(*_):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(near, "find_metric", fails)
    model = UDNRegressor(**QUICK).fit(x, y)
    assert type(model.model_.network.heads["1"]) is not KernelHead
    assert np.isfinite(model.predict(x)).all()


def test_models_with_rows_are_saved_exported_and_asked_for_one_row(board, tmp_path):
    x, y, closed = board
    expected = closed.predict(x)
    np.testing.assert_allclose(closed.predict(x[:3]), expected[:3], rtol=1e-6, atol=1e-6)
    by_depth = closed.predict_by_depth(x[:20])
    probs = closed.depth_probs_[closed.depths_[0] - 1 :]
    np.testing.assert_allclose(np.tensordot(probs, by_depth, 1), expected[:20], rtol=1e-6)
    closed.save(tmp_path / "model.udn")
    for again in (UDNRegressor.load(tmp_path / "model.udn"), pickle.loads(pickle.dumps(closed))):
        np.testing.assert_array_equal(again.predict(x), expected)
    # What is learnt later starts from there.
    later = copy.deepcopy(closed).partial_fit(x[:64], y[:64])
    assert np.corrcoef(later.predict(x), expected)[0, 1] > 0.99
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    ub.export(closed, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (asked,) = session.get_inputs()
    kind = np.float64 if "double" in asked.type else np.float32
    found = session.run(["mean"], {asked.name: x[:40].astype(kind)})[0]
    np.testing.assert_allclose(found, expected[:40], rtol=1e-3, atol=1e-3)


def test_members_and_several_targets_have_rows_in_common(tmp_path):
    x, y = squares(600)
    model = UDNRegressor(n_members=2, **QUICK).fit(x, np.column_stack([y, 3 - y]))
    assert all(type(m.network.heads["1"]) is KernelHead for m in model.members_)
    many = model.predict(x)
    np.testing.assert_allclose(model.predict(x[:4]), many[:4], rtol=1e-6, atol=1e-6)
    model.save(tmp_path / "two.udn")
    np.testing.assert_array_equal(UDNRegressor.load(tmp_path / "two.udn").predict(x), many)


def test_more_rows_are_taken_only_where_they_are_worth_it(monkeypatch):
    monkeypatch.setattr(near, "SOME", 200)
    x, y = squares(700)
    many = UDNRegressor(**QUICK).fit(x, y)
    assert len(many.model_.layers.head_rows) == 700
    monkeypatch.setattr(near, "_GAIN", 10.0)
    few = UDNRegressor(**QUICK).fit(x, y)
    assert len(few.model_.layers.head_rows) == 305
    monkeypatch.setattr(near, "MOST", 250)  # no place for those that were held out
    fewest = UDNRegressor(**QUICK).fit(x, y)
    assert len(fewest.model_.layers.head_rows) == 200
    assert not held_out(fewest)[1]
