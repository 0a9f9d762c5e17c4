"""Nearness to rows at the end of a classifier's training: exact, judged by held-out rows."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import laplacian_kernel

import unbounded as ub
from unbounded import UDNClassifier
from unbounded.estimators import calibration, class_nearness
from unbounded.estimators.class_nearness import Chosen, indicators
from unbounded.estimators.metric import CONSTANT, Table
from unbounded.layers.kernels import KernelHead

QUICK = {"width": 16, "random_state": 0, "epochs": 20, "device": "cpu"}


def squares(rows, seed=0):
    """A class of its own for each square of a board: edges along two columns together."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    board = np.random.default_rng(4).permutation(36).reshape(6, 6) % 3
    places = (3 * (x + 1)).astype(int)
    return x, board[places[:, 0], places[:, 1]]


def lean(rows, seed=0):
    """Two classes by a line and much noise: nothing that is near says more."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    return x, (x[:, 0] + rng.logistic(size=rows) > 0).astype(int)


def heads(model):
    """Of all depths, of the first network."""
    return list(model.model_.network.heads.values())


@pytest.fixture(scope="module")
def board():
    """A model with nearness to rows."""
    x, y = squares(700)
    return x, y, UDNClassifier(**QUICK).fit(x, y)


def test_indicators_of_each_likelihood():
    y = torch.tensor([2, 0])
    expected = torch.tensor([[-1, -1, 2], [2, -1, -1]]).double() / 3
    torch.testing.assert_close(indicators(ub.Categorical(3), y), expected)
    torch.testing.assert_close(
        indicators(ub.Bernoulli(), torch.tensor([1, 0])), torch.tensor([[0.5], [-0.5]]).double()
    )
    labels = torch.tensor([[1, 0], [0, 0]])
    torch.testing.assert_close(indicators(ub.MultiLabel(2), labels), labels.double() - 0.5)


def test_edges_of_columns_together_are_found(board):
    x, y, model = board
    assert {type(head) for head in heads(model)} == {KernelHead}
    fresh, truth = squares(2000, seed=5)
    plain = UDNClassifier(least_squares=False, **QUICK).fit(x, y)
    scores = [log_loss(truth, m.predict_proba(fresh)) for m in (plain, model)]
    assert scores[1] < 0.8 * scores[0]
    assert model.score(fresh, truth) > plain.score(fresh, truth) + 0.02


def test_what_nearness_adds_is_a_ridge_regression_of_the_indicators(board):
    """All logits of a depth less what its linear head says, beside scikit-learn's."""
    x, y, model = board
    head = heads(model)[0]
    rows = np.array(model.model_.layers.head_rows)
    scales = np.array(model.model_.layers.head_scales)
    inputs = model.input_scaling_.apply(x).astype(np.float32)
    codes = {tuple(row): own for row, own in zip(inputs, y, strict=True)}
    targets = np.eye(3)[[codes[tuple(row)] for row in rows.astype(np.float32)]] - 1 / 3
    fresh = np.random.default_rng(1).uniform(-1.5, 1.5, size=(50, 2))
    # λ is not kept: it is the one with which values are in proportion to those of the head.
    values = head.values.double().numpy()
    gram = laplacian_kernel(rows * scales, rows * scales, gamma=1.0) + CONSTANT
    fits = []
    for strength in np.geomspace(1e-3, 1e2, 600):
        coefficients = np.linalg.solve(gram + strength * np.eye(len(rows)), targets)
        amount = (coefficients * values).sum() / (coefficients**2).sum()
        fits.append((np.abs(values - amount * coefficients).max(), strength, amount))
    off, strength, amount = min(fits)
    assert off < 0.02 * np.abs(values).max()
    ridge = KernelRidge(alpha=strength, kernel="precomputed").fit(gram, targets)
    across = laplacian_kernel(fresh * scales, rows * scales, gamma=1.0)
    told = amount * ridge.predict(across + CONSTANT)
    state = torch.zeros(50, head.linear.in_features)
    with torch.no_grad():
        found = head(state, torch.from_numpy(fresh).float()).double() - head.linear.bias
    found += CONSTANT * head.values.double().sum(0)
    assert (found - torch.from_numpy(told)).abs().max() < 0.03 * np.abs(told).max()


def test_held_out_rows_are_judged_by_all_others(monkeypatch):
    """What they are calibrated by is what a model that has never met them says of each."""
    x, y = squares(300)
    kept = []

    def calibrate(held):
        kept.append((held, [replace_nothing(one) for one in held.members]))
        return 1.0

    def replace_nothing(prediction):
        return prediction.outputs.clone()

    monkeypatch.setattr("unbounded.estimators.base.calibrate", calibrate)
    model = UDNClassifier(**QUICK).fit(x, y)
    held, (outputs,) = kept[0]
    network = model.members_[0]
    head = next(iter(network.network.heads.values()))
    assert type(head) is KernelHead
    rows, values = head.rows.double(), head.values.double()
    gram = torch.exp(-torch.cdist(rows * head.scales, rows * head.scales, p=1.0)) + CONSTANT
    count = len(held.rows.x)
    # Of n rows with values v, K v = a Y − λ v: so λ follows from any of them.
    targets = indicators(ub.Categorical(3), torch.from_numpy(held.rows.y))
    own, told = values[-count:], (gram @ values)[-count:]
    (strength, amount), *_ = np.linalg.lstsq(
        np.stack([-own.flatten().numpy(), targets.flatten().numpy()], 1),
        told.flatten().numpy(),
        rcond=None,
    )
    inputs = held.tensors[0].float()
    with torch.no_grad():
        now = ub.predict(network, inputs).outputs.double()
    every = amount * torch.cat([(gram @ values + strength * values)[:-count] / amount, targets])
    for row in range(0, count, 7):
        others = torch.arange(len(rows)) != len(rows) - count + row
        alone = torch.linalg.solve(
            gram[others][:, others] + strength * torch.eye(len(rows) - 1).double(), every[others]
        )
        without = gram[~others][:, others] @ alone
        expected = now[:, row] - told[row] + without
        torch.testing.assert_close(outputs[:, row].double(), expected, rtol=0.01, atol=0.02)


def test_nothing_is_added_where_it_says_no_more():
    x, y = lean(600)
    fresh, truth = lean(2000, seed=1)
    plain, model = (UDNClassifier(least_squares=way, **QUICK).fit(x, y) for way in (False, True))
    scores = [log_loss(truth, m.predict_proba(fresh)) for m in (plain, model)]
    assert scores[1] < scores[0] + 0.01


def test_little_evidence_is_none(board, monkeypatch):
    """Half a nat of all held-out rows together has to be gained."""
    x, y, _ = board
    monkeypatch.setattr(class_nearness, "_LEAST_GAIN", 1e6)
    model = UDNClassifier(**QUICK).fit(x, y)
    assert {type(head) for head in heads(model)} == {torch.nn.Linear}


def test_share_and_amount_have_the_highest_penalised_likelihood(board):
    x, y, model = board
    plain = UDNClassifier(least_squares=False, **QUICK).fit(x, y).model_
    judges = object.__new__(class_nearness._Judges)
    inputs = torch.from_numpy(model.input_scaling_.apply(x[:60])).float()
    judges.y, judges.weights = torch.from_numpy(y[:60]), torch.ones(60).double()
    judges._members = [ub.predict(plain, inputs)]
    judges._likelihood = ub.Categorical(3)
    near = indicators(ub.Categorical(3), judges.y)
    near[::9] *= -1  # not always right
    # Rows that were learnt from, of which it says as much: held-out rows are neither kind nor not.
    rows = Table(inputs.double(), indicators(ub.Categorical(3), judges.y), judges.weights, near)

    def score(share, amount):
        logits = share * judges._members[0].outputs + amount * near.float()
        log_q = judges._members[0].depth_log_probs
        probs = (logits.log_softmax(-1) + log_q[:, None, None]).logsumexp(0).exp()
        total = (probs[torch.arange(60), judges.y].double() + 1 / 60).log().sum()
        return float(total - (amount**2 / 128 if amount else 2 * np.log(share) ** 2))

    pairs = [(k, a) for k in class_nearness.SHARES for a in class_nearness.AMOUNTS]
    best = max(pairs, key=lambda pair: score(*pair))
    found = judges.choose(near, near, rows)
    assert (found.share, found.amount) == best
    assert found.score == pytest.approx(score(*best), abs=1e-3)
    # What a temperature does is no gain.
    alone = max(class_nearness.ALONE, key=lambda share: score(share, 0))
    nothing = torch.zeros_like(near)
    assert judges.choose(nothing, nothing, rows) == Chosen(
        alone, 0.0, pytest.approx(score(alone, 0), abs=1e-3)
    )


def test_held_out_rows_that_are_kind_to_nearness_count_less(board):
    """It is right on all of them, and wrong on a third of the rows that were learnt from."""
    x, y, model = board
    plain = UDNClassifier(least_squares=False, **QUICK).fit(x, y).model_
    judges = object.__new__(class_nearness._Judges)
    inputs = torch.from_numpy(model.input_scaling_.apply(x[:60])).float()
    judges.y, judges.weights = torch.from_numpy(y[:60]), torch.ones(60).double()
    judges._members, judges._likelihood = [ub.predict(plain, inputs)], ub.Categorical(3)
    right = indicators(ub.Categorical(3), judges.y)
    wrong = right.clone()
    wrong[::3] = wrong[::3].roll(1, 1)
    rows = Table(inputs.double(), right, judges.weights, right)
    believed, doubted = (judges.choose(right, known, rows) for known in (right, wrong))
    assert believed.amount > doubted.amount
    assert doubted.share >= believed.share


def test_slopes_lie_between_nothing_and_all():
    x = torch.arange(5).double()
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0]).double()
    for rise, expected in ((0.3, 0.3), (-0.3, 0.0), (3.0, 1.0)):
        y = 7 + rise * x
        assert class_nearness.slope(weights, x, y) == pytest.approx(expected)
    assert class_nearness.slope(weights, torch.ones(5).double(), x) == 0


def test_targets_are_known_from_their_indicators():
    for likelihood, y in (
        (ub.Categorical(4), torch.tensor([3, 0, 2])),
        (ub.Bernoulli(), torch.tensor([1, 0, 1])),
        (ub.MultiLabel(2), torch.tensor([[1, 0], [0, 0], [1, 1]])),
    ):
        found = class_nearness.targets_of(likelihood, indicators(likelihood, y))
        torch.testing.assert_close(found, y)


def test_the_temperature_divides_all_of_a_head(board):
    x, _, model = board
    network = copy.deepcopy(model.model_)
    inputs = torch.from_numpy(model.input_scaling_.apply(x[:40])).float()
    before = ub.predict(network, inputs).outputs
    with torch.no_grad():
        calibration._change([network], of_classes=True)(4.0)
    torch.testing.assert_close(ub.predict(network, inputs).outputs, before / 4)
    # And what is taken back later is of the same size.
    calibration.forget_judges([network])
    other = copy.deepcopy(model.model_)
    calibration.forget_judges([other])
    torch.testing.assert_close(
        ub.predict(network, inputs).outputs, ub.predict(other, inputs).outputs / 4
    )


def test_rows_of_an_eval_set_and_before_a_further_fit_are_never_learnt_from(board):
    x, y, model = board
    assert all(bool(head.added.any()) for head in heads(model))
    watched = UDNClassifier(**QUICK).fit(x[:500], y[:500], eval_set=(x[500:], y[500:]))
    assert len(watched.model_.layers.head_rows) == 500
    warm = UDNClassifier(warm_start=True, **QUICK).fit(x, y)
    for closed in (watched, warm):
        assert {type(head) for head in heads(closed)} == {KernelHead}
        assert not any(bool(head.added.any()) for head in heads(closed))
    again = warm.set_params(epochs=1).fit(x, y)
    assert {type(head) for head in heads(again)} == {KernelHead}


def test_further_networks_have_rows_too():
    """Each with those that the others have held out; the first is as it is alone."""
    rng = np.random.default_rng(0)
    x, y = squares(300)
    x = np.hstack([x, rng.normal(size=(300, 4))])
    y = np.where(rng.random(300) < 0.2, rng.integers(3, size=300), y)
    options = {**QUICK, "width": 64, "epochs": 80}
    model = UDNClassifier(**options).fit(x, y)
    alone = UDNClassifier(n_members=1, **options).fit(x, y)
    assert len(model.members_) > 1
    assert any(type(head) is KernelHead for head in heads(alone))
    assert model.model_.layers.head_rows == alone.model_.layers.head_rows
    probs = model.predict_proba(x[:50])
    np.testing.assert_allclose(model.predict_proba(x[:3]), probs[:3], atol=1e-9)


@pytest.mark.parametrize("size", [1, 5, 70])
def test_few_rows_are_predicted_as_many(board, size):
    x, _, model = board
    probs = model.predict_proba(x)
    np.testing.assert_allclose(model.predict_proba(x[:size]), probs[:size], atol=1e-9)
    np.testing.assert_allclose(probs.sum(1), 1)
    by_depth = np.tensordot(
        model.depth_probs_[model.depths_[0] - 1 :], model.predict_by_depth(x[:size]), 1
    )
    np.testing.assert_allclose(by_depth, probs[:size], atol=1e-6)
    early, depths = model.predict_proba(x[:size], exit=0.9)
    assert early.shape == (size, 3)
    assert depths.max() <= model.max_depth_


def test_models_with_rows_are_saved_and_exported(board, tmp_path):
    x, y, model = board
    expected = model.predict_proba(x)
    model.save(tmp_path / "model.udn")
    for again in (UDNClassifier.load(tmp_path / "model.udn"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict_proba(x), expected)
    later = copy.deepcopy(model).partial_fit(x[:64], y[:64])
    assert np.abs(later.predict_proba(x) - expected).mean() < 0.1
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    ub.export(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (asked,) = session.get_inputs()
    kind = np.float64 if "double" in asked.type else np.float32
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {asked.name: x[:40].astype(kind)}), strict=True))
    found = next(part for part in outputs.values() if part.shape == (40, 3))
    np.testing.assert_allclose(found, expected[:40], atol=1e-3)


def test_labels_and_weights_of_classes():
    x, y = squares(600)
    labels = np.column_stack([y == 0, y == 1]).astype(int)
    model = UDNClassifier(**QUICK).fit(x, labels)
    assert {type(head) for head in heads(model)} == {KernelHead}
    fresh, truth = squares(1000, seed=5)
    plain = UDNClassifier(least_squares=False, **QUICK).fit(x, labels)
    wanted = np.column_stack([truth == 0, truth == 1])
    errors = [((m.predict_proba(fresh) - wanted) ** 2).mean() for m in (plain, model)]
    assert errors[1] < errors[0]
    balanced = UDNClassifier(class_weight="balanced", **QUICK).fit(x, y == 0)
    assert np.isfinite(balanced.predict_proba(fresh)).all()


def test_a_time_limit_or_a_failure_leaves_it_out(board, monkeypatch):
    x, y, _ = board
    with monkeypatch.context() as patch:
        patch.setattr(class_nearness, "seconds", lambda rows: 1e9)
        model = UDNClassifier(time_limit=60, **QUICK).fit(x, y)
        assert {type(head) for head in heads(model)} == {torch.nn.Linear}

    def fails(*_):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(class_nearness, "find_metric", fails)
    model = UDNClassifier(**QUICK).fit(x, y)
    assert {type(head) for head in heads(model)} == {torch.nn.Linear}
    assert math.isfinite(log_loss(y, model.predict_proba(x)))


def test_more_rows_are_taken_where_they_say_more(monkeypatch):
    monkeypatch.setattr(class_nearness, "SOME", 100)
    x, y = squares(700)
    many = UDNClassifier(**QUICK).fit(x, y)
    assert len(many.model_.layers.head_rows) == 700
    monkeypatch.setattr(class_nearness, "MOST", 120)  # no place for those that were held out
    few = UDNClassifier(**QUICK).fit(x, y)
    assert len(few.model_.layers.head_rows) in (0, 100, 120)
    assert not any(bool(head.added.any()) for head in heads(few) if isinstance(head, KernelHead))
