import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from sklearn import metrics as sk

from unbounded import metrics


def classes(seed, rows=60, num_classes=4, sharpness=2.0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 1 / sharpness), rows)
    labels = np.array([rng.choice(num_classes, p=p) for p in probs])
    return labels, probs


def mixture(seed, depths=3, rows=7):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(scale=2, size=rows),
        rng.dirichlet(np.ones(depths)),
        rng.normal(scale=2, size=(depths, rows)),
        rng.uniform(0.1, 2, size=(depths, rows)),
    )


seeds = st.integers(0, 10_000)


@given(seeds, st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_class_scores_are_those_of_scikit_learn(seed, num_classes):
    labels, probs = classes(seed, num_classes=num_classes)
    every = np.arange(num_classes)
    assert metrics.accuracy(labels, probs) == sk.accuracy_score(labels, probs.argmax(1))
    assert metrics.log_score(labels, probs) == pytest.approx(
        -sk.log_loss(labels, probs, labels=every), rel=1e-9
    )
    one_hot = np.eye(num_classes)[labels]
    assert metrics.brier(labels, probs) == pytest.approx(
        num_classes * sk.mean_squared_error(one_hot, probs)
    )
    assert np.array_equal(
        metrics.confusion_matrix(labels, probs),
        sk.confusion_matrix(labels, probs.argmax(1), labels=every),
    )


def test_brier_of_two_classes_is_twice_the_one_sided():
    labels, probs = classes(0, num_classes=2)
    assert metrics.brier(labels, probs) == pytest.approx(
        2 * sk.brier_score_loss(labels, probs[:, 1])
    )


def test_calibration_error_by_hand():
    # Confidences 0.6 (right), 0.62 (wrong) and 0.9 (right), 0.95 (right).
    probs = np.array([[0.6, 0.4], [0.62, 0.38], [0.1, 0.9], [0.05, 0.95]])
    labels = np.array([0, 1, 1, 1])
    two_bins = (abs(1 / 2 - 0.61) * 2 + abs(1 - 0.925) * 2) / 4
    # Ten equal bins: 0.6 falls into (0.5, 0.6], closed on the right.
    ten_bins = (abs(1 - 0.6) + abs(0 - 0.62) + abs(1 - 0.9) + abs(1 - 0.95)) / 4
    assert metrics.ece(labels, probs, bins=1) == pytest.approx(abs(3 / 4 - probs.max(1).mean()))
    assert metrics.adaptive_ece(labels, probs, bins=2) == pytest.approx(two_bins)
    assert metrics.ece(labels, probs, bins=10) == pytest.approx(ten_bins)


@pytest.mark.parametrize("adaptive", [False, True])
@given(seed=seeds, bins=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_reliability_accounts_for_every_row(adaptive, seed, bins):
    labels, probs = classes(seed)
    curve = metrics.reliability(labels, probs, bins, adaptive=adaptive)
    assert curve.count.sum() == labels.size
    assert (curve.count > 0).all()
    assert (curve.low < curve.confidence).all()
    assert (curve.confidence <= curve.high + 1e-12).all()
    assert (np.diff(curve.confidence) > 0).all()
    share = curve.count / labels.size
    assert share @ curve.accuracy == pytest.approx(metrics.accuracy(labels, probs))
    assert share @ curve.confidence == pytest.approx(probs.max(1).mean())
    if adaptive and labels.size % bins == 0:
        assert (curve.count == labels.size // bins).all()


def test_calibration_error_of_true_probabilities_goes_to_zero():
    labels, probs = classes(0, rows=200_000)
    assert metrics.ece(labels, probs) < 0.005  # Monte Carlo: 15 bins of about 13,000 rows
    assert metrics.adaptive_ece(labels, probs) < 0.005
    sharper = probs**2 / (probs**2).sum(1, keepdims=True)
    assert metrics.ece(labels, sharper) > 0.05


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_order_of_the_rows_does_not_matter(seed):
    labels, probs = classes(seed)
    probs = np.round(probs, 1)  # many ties
    probs[:, 0] += 1 - probs.sum(1)
    probs = np.abs(probs) / np.abs(probs).sum(1, keepdims=True)
    order = np.random.default_rng(seed).permutation(labels.size)
    for score in (metrics.aurc, metrics.ece, metrics.adaptive_ece, metrics.brier):
        assert score(labels[order], probs[order]) == pytest.approx(score(labels, probs))


def test_aurc_is_the_mean_risk_over_coverages():
    labels, probs = classes(3, rows=40)
    order = np.argsort(-probs.max(1))
    wrong = (probs.argmax(1) != labels)[order]
    risks = [wrong[:k].mean() for k in range(1, 41)]
    assert metrics.aurc(labels, probs) == pytest.approx(np.mean(risks))


def test_aurc_with_ties_is_the_mean_over_orders():
    labels = np.array([0, 0, 1])
    probs = np.array([[0.7, 0.3]] * 3)  # one of three is wrong, all equally sure
    orders = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    expected = np.mean([np.mean(np.cumsum(o) / np.arange(1, 4)) for o in orders])
    assert metrics.aurc(labels, probs) == pytest.approx(expected)


def test_best_possible_class_scores():
    labels = np.array([0, 2, 1])
    probs = np.eye(3)[labels]
    assert metrics.accuracy(labels, probs) == 1
    assert metrics.log_score(labels, probs) == 0
    assert metrics.log_score(labels[::-1], probs) > -np.inf  # a certain and wrong prediction
    assert metrics.brier(labels, probs) == 0
    assert metrics.brier(np.array([1, 0, 0]), probs) == 2
    for score in (metrics.ece, metrics.adaptive_ece, metrics.aurc):
        assert score(labels, probs) == 0


def test_confusion_matrix_of_predicted_classes():
    labels, predicted = [0, 0, 2, 1], [0, 1, 2, 1]
    assert np.array_equal(
        metrics.confusion_matrix(labels, predicted, num_classes=4),
        sk.confusion_matrix(labels, predicted, labels=[0, 1, 2, 3]),
    )
    assert metrics.confusion_matrix(labels, predicted).shape == (3, 3)
    with pytest.raises(ValueError, match="classes must be in 0 … 1"):
        metrics.confusion_matrix(labels, predicted, num_classes=2)


@pytest.mark.parametrize("shape", [(30,), (30, 3)])
def test_errors_are_those_of_scikit_learn(shape):
    rng = np.random.default_rng(0)
    y, mean = rng.normal(size=shape), rng.normal(size=shape)
    assert metrics.rmse(y, mean) == pytest.approx(np.sqrt(sk.mean_squared_error(y, mean)))
    assert metrics.mae(y, mean) == pytest.approx(sk.mean_absolute_error(y, mean))
    assert metrics.r2(y, mean) == pytest.approx(sk.r2_score(y, mean))


def test_r2_of_a_constant_target():
    assert metrics.r2([2.0, 2.0], [2.0, 2.0]) == sk.r2_score([2.0, 2.0], [2.0, 2.0]) == 1
    assert metrics.r2([2.0, 2.0], [2.0, 3.0]) == sk.r2_score([2.0, 2.0], [2.0, 3.0]) == 0


@given(seeds, st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_mixture_nll_is_the_density(seed, depths):
    y, q, means, scales = mixture(seed, depths)
    log_density = special.logsumexp(stats.norm(means, scales).logpdf(y), 0, b=q[:, None])
    assert metrics.mixture_nll(y, q, means, scales) == pytest.approx(-log_density.mean())


def test_mixture_nll_of_several_targets_mixes_their_product():
    rng = np.random.default_rng(0)
    y, q = rng.normal(size=(5, 2)), np.array([0.3, 0.7])
    means, scales = rng.normal(size=(2, 5, 2)), rng.uniform(0.5, 1, size=(2, 5, 2))
    joint = stats.norm(means, scales).pdf(y).prod(2)
    assert metrics.mixture_nll(y, q, means, scales) == pytest.approx(-np.log(q @ joint).mean())


@given(seeds, st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_crps_is_its_integral(seed, depths):
    y, q, means, scales = mixture(seed, depths, rows=1)

    def integrand(t):
        return (q @ stats.norm(means[:, 0], scales[:, 0]).cdf(t) - (t >= y[0])) ** 2

    # The integrand jumps at y: integrate each side for itself, 30 units being 15 scales and more.
    below, _ = integrate.quad(integrand, y[0] - 30, y[0], limit=200)
    above, _ = integrate.quad(integrand, y[0], y[0] + 30, limit=200)
    assert metrics.mixture_crps(y, q, means, scales) == pytest.approx(below + above, abs=1e-6)


def test_crps_properties():
    y, q, means, scales = mixture(0)
    value = metrics.mixture_crps(y, q, means, scales)
    # In the units of y, unmoved by shifts, and the same for a component that is split in two.
    assert metrics.mixture_crps(3 * y + 1, q, 3 * means + 1, 3 * scales) == pytest.approx(3 * value)
    split = np.concatenate([[q[0] / 2, q[0] / 2], q[1:]])
    again = (np.concatenate([a[:1], a]) for a in (means, scales))
    assert metrics.mixture_crps(y, split, *again) == pytest.approx(value)
    # Without spread it is the absolute error.
    sharp = metrics.mixture_crps(y, [1.0], means[:1], np.full((1, 7), 1e-9))
    assert sharp == pytest.approx(metrics.mae(y, means[0]), abs=1e-8)


def test_crps_is_smallest_for_the_true_distribution():
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    scores = [
        metrics.mixture_crps(y, [1.0], np.full((1, y.size), m), np.full((1, y.size), s))
        for m, s in [(0, 1), (0.3, 1), (0, 0.7), (0, 1.5)]
    ]
    assert min(scores) == scores[0]
    assert scores[0] == pytest.approx(1 / np.sqrt(np.pi), rel=0.02)  # 2% is 3 standard errors


@given(seeds, st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_quantiles_invert_the_distribution_function(seed, depths):
    y, q, means, scales = mixture(seed, depths)
    levels = [0.05, 0.5, 0.9]
    values = metrics.mixture_quantile(levels, q, means, scales)
    assert values.shape == (3, y.size)
    for level, value in zip(levels, values, strict=True):
        assert metrics.mixture_cdf(value, q, means, scales) == pytest.approx(level, abs=1e-9)
    expected = (q[:, None] * stats.norm(means, scales).cdf(y)).sum(0)
    assert metrics.mixture_cdf(y, q, means, scales) == pytest.approx(expected)


def test_intervals_of_the_true_distribution_hold_what_they_say():
    rng = np.random.default_rng(0)
    q, means, scales = np.array([0.3, 0.7]), np.array([-2.0, 1.0]), np.array([0.5, 1.0])
    depth = rng.choice(2, p=q, size=20_000)
    y = rng.normal(means[depth], scales[depth])
    mu, sigma = (np.repeat(a[:, None], y.size, 1) for a in (means, scales))
    found = metrics.mixture_intervals(y, q, mu, sigma)
    assert [i.level for i in found] == [0.5, 0.9, 0.95]
    for interval in found:
        # Four standard errors of a share of 20,000 rows.
        assert interval.coverage == pytest.approx(interval.level, abs=0.015)
        low, high = metrics.mixture_quantile(
            [(1 - interval.level) / 2, (1 + interval.level) / 2], q, mu[:, :1], sigma[:, :1]
        )
        assert interval.width == pytest.approx((high - low).item())
    half = metrics.mixture_intervals(y, q, mu, sigma / 2)
    assert all(a.coverage < b.coverage for a, b in zip(half, found, strict=True))


def test_coverage_and_width():
    assert metrics.coverage([0.0, 1.0, 2.0, 3.0], [0, 0, 3, 0], [1, 1, 4, 2]) == 0.5
    assert metrics.mean_width([0.0, 1.0], [1.0, 4.0]) == 2


def test_tensors_lists_and_arrays_are_the_same():
    labels, probs = classes(0)
    y, q, means, scales = mixture(0)
    assert metrics.brier(labels.tolist(), torch.tensor(probs)) == metrics.brier(labels, probs)
    tensors = [torch.tensor(a, requires_grad=True) for a in (y, q, means, scales)]
    assert metrics.mixture_nll(*tensors) == metrics.mixture_nll(y, q, means, scales)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: metrics.accuracy([0, 2], [[0.5, 0.5], [0.5, 0.5]]), r"0 … 1, got 0 … 2"),
        (lambda: metrics.accuracy([0], [[0.5, 0.5], [0.5, 0.5]]), r"\(1, class\), got \(2, 2\)"),
        (lambda: metrics.accuracy([0.5, 1], [[0.5, 0.5], [0.5, 0.5]]), "fractions"),
        (lambda: metrics.brier([0], [[0.5, 0.9]]), "sum to 1"),
        (lambda: metrics.ece([0], [[0.5, 0.5]], bins=0), "bins must be"),
        (lambda: metrics.aurc([], np.zeros((0, 2))), "no rows"),
        (lambda: metrics.rmse([1.0, 2.0], [[1.0], [2.0]]), r"shape \(2,\), got \(2, 1\)"),
        (lambda: metrics.mixture_nll([0.0], [1.0], [[0.0]], [[0.0]]), "scales must be positive"),
        (lambda: metrics.mixture_nll([0.0], [0.4], [[0.0]], [[1.0]]), "sum of 0.4"),
        (lambda: metrics.mixture_nll([0.0], [1.0], [0.0], [1.0]), r"\(depth, rows\)"),
        (lambda: metrics.mixture_nll([0.0, 1], [1.0], [[0.0]], [[1.0]]), "depth, in front"),
        (lambda: metrics.mixture_crps([0.0], [0.5, 0.5], [[0.0]], [[1.0]]), "1 depths"),
        (lambda: metrics.mixture_quantile(1.0, [1.0], [[0.0]], [[1.0]]), "between 0 and 1"),
        (lambda: metrics.coverage([0.0], [0.0, 1.0], [0.0]), "lower must have shape"),
    ],
)
def test_wrong_shapes_are_told(call, match):
    with pytest.raises(ValueError, match=match):
        call()
