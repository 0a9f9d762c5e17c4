import inspect
import io
import json
import os
import pickle
import re
import subprocess
import sys

import joblib
import numpy as np
import pandas
import polars
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import unbounded
from unbounded import UDNClassifier, UDNRegressor, devices, estimators, metrics
from unbounded.estimators.rows import MIN_VALIDATION_ROWS, Scaling, merge, split
from unbounded.likelihoods import InputNoise
from unbounded.training import TrainingWarning

# Enough to tell whether things work, not to fit well.
SHORT = {"epochs": 4, "random_state": 0}
# Enough to fit well.
MODEST = {"epochs": 30, "lr": 0.01, "random_state": 0}


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def classifier(iris):
    return UDNClassifier(epochs=10, random_state=0).fit(*iris)


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(200, noise=0.5, random_state=0)


@pytest.fixture(scope="module")
def regressor(friedman):
    return UDNRegressor(epochs=10, random_state=0).fit(*friedman)


# scikit-learn's own checks


# No check is expected to fail. One, of array-API input, skips itself for each estimator unless
# SCIPY_ARRAY_API was set before SciPy was imported: a test below runs those two.
QUICK = {"epochs": 10, "width": 16, "lr": 0.02}


@parametrize_with_checks([UDNClassifier(**QUICK), UDNRegressor(**QUICK)])
def test_scikit_learn(estimator, check):
    check(estimator)


def default_checks():
    """Checks in which it matters how long and how fast an estimator trains, by default."""
    names = ("check_fit2d_1sample", "check_sample_weight_equivalence_on_dense_data")
    names += ("check_classifiers_one_label", "check_classifiers_train", "check_regressors_train")
    for kind in (UDNClassifier, UDNRegressor):
        first = {}  # of those that are there in several forms
        for estimator, check in estimator_checks_generator(kind()):
            first.setdefault(check.func.__name__, (estimator, check))
        for name in names:
            if name in first:
                yield pytest.param(*first[name], id=f"{kind.__name__}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(default_checks()))
def test_scikit_learn_by_default(estimator, check):
    check(estimator)


def test_scikit_learn_with_array_api():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", "test_scikit_learn and array_api_input"],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "skipped" not in done.stdout


# What is imported when


def test_importing_the_library_does_not_import_scikit_learn():
    code = (
        "import sys, unbounded; assert 'sklearn' not in sys.modules;"
        "assert not any(name.startswith('unbounded.training') for name in sys.modules);"
        "assert unbounded.training.Callback and unbounded.fit is unbounded.training.fit;"
        "assert {'UDNClassifier', 'UDNRegressor', 'fit'} <= set(dir(unbounded));"
        "from unbounded import UDNClassifier; assert 'sklearn' in sys.modules;"
        "assert unbounded.UDNClassifier is UDNClassifier"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("kind", "own"),
    [(UDNClassifier, {"class_weight"}), (UDNRegressor, {"standardize_target"})],
)
def test_help_and_signature_name_every_argument(kind, own):
    names = set(inspect.signature(kind).parameters)
    assert names == set(kind().get_params()) >= {*own, "width", "random_state"}
    assert len(names) == 26 + len(own)
    for name in names:
        assert f"    {name}: " in kind.__doc__
    assert kind.__doc__.count("depth_probs_: ") == 1
    with pytest.raises(TypeError, match="widht"):
        kind(widht=3)


def test_unknown_names_are_still_errors():
    with pytest.raises(AttributeError, match="no attribute 'UDNTransformer'"):
        unbounded.UDNTransformer  # noqa: B018


# Fitted attributes and predictions


def test_default_arguments_learn(iris, friedman):
    assert UDNClassifier(random_state=0).fit(*iris).score(*iris) > 0.93
    X, y = make_friedman1(200, noise=0.5, random_state=1)
    assert UDNRegressor(random_state=0).fit(*friedman).score(X, y) > 0.8


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_fitted_attributes(name, request):
    estimator = request.getfixturevalue(name)
    q = estimator.depth_probs_
    assert q.shape == (estimator.max_depth_,)
    assert q.sum() == pytest.approx(1)
    assert estimator.depth_mean_ == pytest.approx(estimator.model_.depth.mean(), rel=1e-5)
    assert np.array_equal(estimator.depths_, np.arange(1, estimator.max_depth_ + 1))
    assert estimator.n_iter_ == len(estimator.history_)
    assert 1 <= estimator.best_epoch_ <= estimator.n_iter_
    assert "val_log_score" in estimator.history_.columns
    assert not hasattr(clone(estimator), "model_")
    with pytest.raises(NotFittedError):
        clone(estimator).depth_probs_  # noqa: B018


def test_probabilities_are_the_mixture_over_depths(classifier, iris):
    X, _ = iris
    by_depth = classifier.predict_by_depth(X)
    assert by_depth.shape == (classifier.max_depth_, len(X), 3)
    assert by_depth.sum(2) == pytest.approx(1)
    probs = classifier.predict_proba(X)
    assert np.tensordot(classifier.depth_probs_, by_depth, 1) == pytest.approx(probs)
    assert np.exp(classifier.predict_log_proba(X)) == pytest.approx(probs)
    assert np.array_equal(classifier.predict(X), classifier.classes_[probs.argmax(1)])
    inside = classifier.model_.predict(
        torch.tensor(classifier.input_scaling_.apply(X), dtype=torch.float32)
    )
    assert inside.probs.numpy() == pytest.approx(probs, abs=1e-5)


def test_regression_predicts_the_mixture_over_depths(regressor, friedman):
    X, _ = friedman
    q = regressor.depth_probs_
    means, scales = regressor.predict_by_depth(X, return_std=True)
    assert means.shape == scales.shape == (regressor.max_depth_, len(X))
    assert np.array_equal(means, regressor.predict_by_depth(X))
    mean, std = regressor.predict(X, return_std=True)
    assert mean == pytest.approx(q @ means)
    assert np.array_equal(mean, regressor.predict(X))
    assert std**2 == pytest.approx(q @ scales**2 + q @ (means - mean) ** 2)
    levels = [0.05, 0.5, 0.9]
    quantiles = regressor.predict_quantiles(X, levels)
    expected = metrics.mixture_quantile(levels, q, means, scales)
    assert quantiles == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(regressor.predict_quantiles(X, 0.9), quantiles[2])
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        regressor.predict_quantiles(X, 1.0)


def test_intervals_hold_about_what_they_say(friedman):
    X, y = make_friedman1(500, noise=1.0, random_state=2)
    model = UDNRegressor(**MODEST).fit(X[:300], y[:300])
    low, high = model.predict_quantiles(X[300:], [0.05, 0.95])
    assert 0.75 < metrics.coverage(y[300:], low, high) < 0.99  # 0.9 is meant, of 200 rows


def test_predictions_do_not_depend_on_units(friedman):
    X, y = friedman
    plain = UDNRegressor(**SHORT).fit(X, y)
    # Powers of two and their sums: the standardised numbers are the same to the last bits.
    other = UDNRegressor(**SHORT).fit(1024 * X, 2.0**-20 * y)
    assert 2.0**20 * other.predict(1024 * X) == pytest.approx(plain.predict(X), rel=1e-4)
    unscaled = UDNRegressor(**SHORT, standardize=False, standardize_target=False).fit(X, y)
    assert np.array_equal(unscaled.input_scaling_.scale, np.ones(10))
    assert np.array_equal(unscaled.target_scaling_.center, np.zeros(1))


def test_several_targets(friedman):
    X, y = friedman
    Y = np.column_stack([y, -3 * y + 100])
    model = UDNRegressor(**MODEST).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == Y.shape
    assert model.score(X, Y) > 0.8
    assert model.predict_quantiles(X, [0.1, 0.9]).shape == (2, *Y.shape)
    assert model.predict_by_depth(X).shape == (model.max_depth_, *Y.shape)
    one = UDNRegressor(**SHORT).fit(X, Y[:, :1])
    assert one.predict(X).shape == (200, 1)


def test_many_rows_are_predicted_in_pieces(classifier, iris, monkeypatch):
    X, _ = iris
    whole = classifier.predict_proba(X), classifier.predict_by_depth(X)
    monkeypatch.setattr("unbounded.estimators.rows.PREDICTION_ROWS", 64)
    assert np.allclose(classifier.predict_proba(X), whole[0], rtol=1e-12)
    assert np.allclose(classifier.predict_by_depth(X), whole[1], rtol=1e-12)


def test_predicting_changes_nothing(classifier, iris):
    before = {k: v.clone() for k, v in classifier.model_.state_dict().items()}
    classifier.predict(iris[0])
    after = classifier.model_.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert not torch.is_inference_mode_enabled()


# Seeds


@pytest.mark.parametrize("Estimator", [UDNClassifier, UDNRegressor])
def test_the_seed_decides_everything(Estimator, iris):
    X, y = iris
    state = torch.get_rng_state()
    first, again, other = (
        Estimator(epochs=4, random_state=seed).fit(X, y).predict_by_depth(X) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


# Weights


@pytest.mark.parametrize("Estimator", [UDNClassifier, UDNRegressor])
def test_a_weight_is_a_repetition_and_order_does_not_matter(Estimator, iris):
    # Large enough for a validation share, unlike scikit-learn's own check.
    X, y = iris
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 4, len(X))
    order = rng.permutation(weights.sum())
    weighted = Estimator(**SHORT).fit(X, y, sample_weight=weights)
    repeated = Estimator(**SHORT).fit(X.repeat(weights, 0)[order], y.repeat(weights)[order])
    assert "val_log_score" in weighted.history_.columns
    assert np.array_equal(weighted.predict_by_depth(X), repeated.predict_by_depth(X))
    assert weighted.history_["val_log_score"] == repeated.history_["val_log_score"]


def test_weights_reach_the_elbo_and_the_validation_score(iris):
    X, y = iris
    light = UDNClassifier(**SHORT).fit(X, y)
    heavy = UDNClassifier(**SHORT).fit(X, y, sample_weight=np.full(len(X), 3.0))
    ratio = np.divide(heavy.history_["expected_log_lik"][0], light.history_["expected_log_lik"][0])
    assert ratio == pytest.approx(3, rel=0.3)  # the weights of the network differ after a step
    assert heavy.history_["val_log_score"][0] > -3  # a mean, however much the rows weigh


def test_class_weights_favour_the_rare_class():
    X, y = make_classification(300, weights=[0.95], flip_y=0.1, class_sep=0.3, random_state=0)
    plain = UDNClassifier(**MODEST).fit(X, y)
    balanced = UDNClassifier(**MODEST, class_weight="balanced").fit(X, y)
    given = UDNClassifier(**MODEST, class_weight={0: 1.0, 1: 15.0}).fit(X, y)
    shares = [m.predict_proba(X)[:, 1].mean() for m in (plain, balanced, given)]
    assert shares[0] < 0.2 < shares[1]
    assert shares[0] < 0.2 < shares[2]


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.zeros(150), "zero in every row"),
        (np.full(150, -1.0), "at least 0"),
        (np.full(150, np.nan), "finite"),
        (np.ones(149), r"\(150,\), got \(149,\)"),
    ],
)
def test_bad_weights(weights, match, iris):
    with pytest.raises(ValueError, match=match):
        UDNRegressor().fit(*iris, sample_weight=weights)


# Parts of the core


@pytest.mark.parametrize(
    "arguments",
    [
        {"depth": unbounded.FixedDepth(2)},
        {"depth": unbounded.FiniteDepth(3), "depth_prior": unbounded.UniformDepth(3)},
        {"depth": unbounded.TruncatedPoisson(rate=4.0)},
        {"depth_prior": unbounded.GeometricDepth(0.3)},
        {"weight_prior": unbounded.GaussianWeights(0.5)},
        {"layers": lambda i, o: unbounded.ResidualDense(i, 16, o)},
        {"layers": unbounded.Dense(4, 16, 3, activation="tanh")},
        {"width": 8},
    ],
    ids=lambda a: next(iter(a)),
)
def test_parts_can_be_passed_in(arguments, iris, tmp_path):
    X, y = iris
    # One more update of λ would be enough to see whether the argument itself was trained.
    before = {k: pickle.dumps(v) for k, v in arguments.items() if k != "layers"}
    model = UDNClassifier(**SHORT, **arguments).fit(X, y)
    assert before == {k: pickle.dumps(v) for k, v in arguments.items() if k != "layers"}
    by_depth = model.predict_by_depth(X)
    weights = model.depth_probs_[model.depths_ - 1]
    assert len(by_depth) == len(model.depths_)
    assert np.tensordot(weights, by_depth, 1) == pytest.approx(model.predict_proba(X))
    for name, value in arguments.items():
        if name in ("depth", "depth_prior", "weight_prior"):
            assert type(getattr(model.model_, name)) is type(value)
    model.save(tmp_path / "model.udn")
    loaded = UDNClassifier.load(tmp_path / "model.udn")
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_likelihoods_can_be_passed_in(iris, friedman):
    X, y = iris
    two = UDNClassifier(likelihood=unbounded.Bernoulli(), **MODEST).fit(X, y == 1)
    assert two.predict_proba(X).shape == (150, 2)
    assert two.score(X, y == 1) > 0.9
    X, y = friedman
    noisy = UDNRegressor(likelihood=unbounded.Gaussian(InputNoise()), **MODEST).fit(X, y)
    _, std = noisy.predict(X, return_std=True)
    assert noisy.score(X, y) > 0.8
    assert np.ptp(std) > 0.01 * std.mean()


def test_likelihoods_of_the_wrong_kind_are_told(iris):
    X, y = iris
    model = UDNRegressor(
        likelihood=unbounded.Categorical(3), **SHORT, standardize_target=False, width=4,
        layers=lambda i, _: unbounded.Dense(i, 4, 3),
    ).fit(X, y)  # fmt: skip
    with pytest.raises(TypeError, match="Categorical predicts no mean"):
        model.predict(X)
    model = UDNClassifier(
        likelihood=unbounded.Gaussian(), layers=lambda i, _: unbounded.Dense(i, 4, 1), epochs=1
    ).fit(X, y > 0)
    with pytest.raises(TypeError, match="Gaussian predicts no classes"):
        model.predict(X)


def test_layers_that_take_integers():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(60, 3))
    y = (X.sum(1) > 6).astype(int)

    def layers(in_features, out_features):
        def hidden(depth):
            if depth > 1:
                return torch.nn.Linear(12, 12)
            return torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Flatten())

        return unbounded.CustomLayers(
            hidden, lambda depth: torch.nn.Linear(12, out_features), integer_inputs=True
        )

    model = UDNClassifier(layers=layers, standardize=False, **SHORT).fit(X, y)
    assert model.predict(X).shape == (60,)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"layers": 3}, "Layers or a callable"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": np.array([1, 2])}, "epochs must be"),
        ({"width": "a"}, "width must be an integer from 1"),
        ({"quality": ["fast"]}, "quality must be one of"),
        ({"preset": ["paper"]}, "preset must be one of"),
        ({"select": np.array(["score", "score"])}, "select must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"select": "loss"}, "select must be"),
        ({"layers": unbounded.Dense(7, 8, 3)}, "layer 1 could not take"),
        ({"layers": unbounded.Dense(4, 8, 5)}, "heads must give 3 numbers"),
    ],
)
def test_bad_arguments_are_told_when_fitting(arguments, match, iris):
    with pytest.raises(ValueError, match=match):
        UDNClassifier(**arguments).fit(*iris)


# Interruption


class Interrupting(unbounded.Categorical):
    """Ctrl-C during the given call of `log_prob`."""

    def __init__(self, num_classes, at):
        super().__init__(num_classes)
        self.calls, self.at = 0, at

    def log_prob(self, outputs, y):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return super().log_prob(outputs, y)


def test_ctrl_c_keeps_the_best_model(iris):
    X, y = iris
    model = UDNClassifier(likelihood=Interrupting(3, at=40), random_state=0)
    with pytest.warns(TrainingWarning, match=r"interrupted: epoch \d+ of \d+ is kept"):
        model.fit(X, y)
    assert model.stopped_ == "interrupted"
    assert 1 <= model.best_epoch_ <= model.n_iter_ < 40
    assert model.score(X, y) > 0.5


def test_ctrl_c_before_anything_was_learnt_is_passed_on(iris):
    with pytest.raises(KeyboardInterrupt):
        UDNClassifier(likelihood=Interrupting(3, at=1)).fit(*iris)


# partial_fit


def test_partial_fit_goes_on_from_where_it_stands(iris):
    X, y = iris
    model = UDNClassifier(random_state=0, batch_size=32)
    scores = []
    rng = np.random.default_rng(0)
    for _ in range(30):
        rows = rng.choice(150, 60)
        model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
        scores.append(model.score(X, y))
    assert scores[-1] > 0.9
    assert scores[-1] > scores[0]
    assert model.n_rows_seen_ == 30 * 60
    layer = model.model_.network.hidden["1"].linear.weight
    fitted = UDNClassifier(**SHORT).fit(X, y)
    before = fitted.model_.network.hidden["1"].linear.weight.detach().clone()
    seen = fitted.n_rows_seen_
    fitted.partial_fit(X, y)
    moved = (fitted.model_.network.hidden["1"].linear.weight - before).abs().max().item()
    assert 0 < moved < 0.1  # moved, but not born anew
    assert fitted.n_rows_seen_ == seen + 150
    assert layer is model.model_.network.hidden["1"].linear.weight


def test_partial_fit_of_numbers(friedman):
    X, y = friedman
    model = UDNRegressor(random_state=0, batch_size=25)
    for _ in range(20):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.7
    with pytest.raises(ValueError, match="y has 2 targets, 1 before"):
        model.partial_fit(X, np.column_stack([y, y]))


def test_partial_fit_does_not_undo_what_fit_has_learnt():
    draw = np.random.default_rng(0)

    def rows(count):
        X = draw.normal(size=(count, 5))
        return X, X[:, 0] + X[:, 1] ** 2 + 0.3 * draw.normal(size=count)

    test = rows(1000)
    model = UDNRegressor(random_state=0).fit(*rows(400))
    scores = [model.score(*test)]
    for _ in range(8):
        scores.append(model.partial_fit(*rows(40)).score(*test))
    assert min(scores) > scores[0] - 0.007
    labels = UDNClassifier(random_state=0).fit(test[0][:400], test[1][:400] > 1)
    X, y = test[0][400:], test[1][400:] > 1
    losses = [log_loss(y, labels.predict_proba(X))]
    for _ in range(4):
        further = rows(40)
        labels.partial_fit(further[0], further[1] > 1)
        losses.append(log_loss(y, labels.predict_proba(X)))
    assert max(losses) < losses[0] + 0.02


@pytest.mark.parametrize("count", [12, 20, 45])
def test_small_tables_hold_out_some_rows(count):
    """Else they would be learnt by heart, and intervals hold a fifth of what they should."""
    draw = np.random.default_rng(1)
    X, Xt = draw.normal(size=(count, 5)), draw.normal(size=(1000, 5))
    y, yt = X[:, 0] + draw.normal(size=count), Xt[:, 0] + draw.normal(size=1000)
    model = UDNRegressor(random_state=0).fit(X, y)
    held = min(8, count // 3)
    assert model._shares.held.size == held
    assert model._shares.learnt.size == count - held
    low, high = model.predict_quantiles(Xt, [0.05, 0.95])
    assert ((low <= yt) & (yt <= high)).mean() > 0.55
    whole = UDNRegressor(random_state=0, validation_fraction=0, epochs=2).fit(X, y)
    assert whole._shares.held.size == 0


def test_a_likelihood_is_one(friedman):
    with pytest.raises(ValueError, match="likelihood must be None or a Likelihood, got 'gauss'"):
        UDNRegressor(likelihood="gauss").fit(*friedman)


def test_partial_fit_says_what_is_wrong(iris):
    X, y = iris
    with pytest.raises(ValueError, match="classes must be given to the first call"):
        UDNClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="one class"):
        UDNClassifier().partial_fit(X, y, classes=[1])
    model = UDNClassifier(**SHORT).partial_fit(X[y < 2], y[y < 2], classes=[0, 1])
    with pytest.raises(ValueError, match=r"classes \[2\] are not among"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="since the first call"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="balanced"):
        UDNClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])


# Files


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["setosa", "versicolor", "virginica"]),
        np.array(["ja", "nein", "vielleicht"], dtype=object),
        np.array([-1, 5, 10**12]),
        np.array([0.5, 1.0, 2.5]),
        np.array([False, True, True]),
    ],
    ids=["str", "object", "int", "float", "bool"],
)
def test_a_file_gives_the_classifier_back(labels, iris, tmp_path):
    X, codes = iris
    kind = np.float64 if labels.dtype.kind == "f" else labels.dtype
    y = labels[codes].astype(kind)
    if labels.dtype.kind == "f":  # scikit-learn takes fractions for a regression
        y = np.floor(y)
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "größe"])
    model = UDNClassifier(**SHORT, width=8, class_weight="balanced").fit(frame, y)
    path = tmp_path / "model.udn"
    model.save(path, extra={"note": [1, "two"]})
    loaded = UDNClassifier.load(path)
    assert np.array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    assert np.array_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.classes_.dtype == model.classes_.dtype
    assert list(loaded.feature_names_in_) == ["a", "b", "c", "größe"]
    assert loaded.get_params() == model.get_params()
    assert loaded.history_.rows == model.history_.rows
    assert loaded.best_epoch_ == model.best_epoch_
    assert np.array_equal(loaded.depth_probs_, model.depth_probs_)
    header = unbounded.files.read_header(path)
    assert header["extra"]["note"] == [1, "two"]
    assert b"pickle" not in path.read_bytes()
    # The model inside is an ordinary one.
    assert unbounded.load(path).depth.mean() == pytest.approx(model.depth_mean_, rel=1e-5)
    # And it can go on.
    loaded.partial_fit(frame, y) if labels.dtype.kind == "nothing" else loaded.fit(frame, y)


def test_a_file_gives_the_regressor_back(regressor, friedman, tmp_path):
    X, y = friedman
    path = tmp_path / "model.udn"
    regressor.save(path)
    loaded = estimators.load(path)
    assert isinstance(loaded, UDNRegressor)
    for a, b in zip(
        loaded.predict(X, return_std=True), regressor.predict(X, return_std=True), strict=True
    ):
        assert np.array_equal(a, b)
    assert not hasattr(loaded, "feature_names_in_")
    with pytest.raises(ValueError, match="holds a UDNRegressor, not a UDNClassifier"):
        UDNClassifier.load(path)
    loaded.partial_fit(X, y)


def test_a_file_keeps_arguments_of_any_plain_type(iris, tmp_path):
    X, y = iris
    given = {"class_weight": {0: 1.0, np.int64(1): 5.0, 2: np.float32(0.5)}}
    given |= {"epochs": np.int64(2), "n_members": np.int64(2), "lr": np.float64(0.01)}
    model = UDNClassifier(**SHORT | given).fit(X, y)
    model.save(tmp_path / "model.udn")
    loaded = UDNClassifier.load(tmp_path / "model.udn")
    found = {name: getattr(loaded, name) for name in given}
    assert found == given
    assert type(found["epochs"]) is int
    model.set_params(random_state=np.random.RandomState(0))
    with pytest.warns(UserWarning, match="cannot hold this random_state, a RandomState"):
        model.save(tmp_path / "model.udn")
    assert UDNClassifier.load(tmp_path / "model.udn").random_state is None


def test_layers_of_your_own_are_passed_in_again(iris, tmp_path):
    X, y = iris
    layers = unbounded.CustomLayers(
        lambda depth: torch.nn.Linear(4, 4), lambda depth: torch.nn.Linear(4, 3)
    )
    model = UDNClassifier(layers=layers, **SHORT).fit(X, y)
    path = tmp_path / "model.udn"
    model.save(path)
    with pytest.raises(unbounded.FileError, match="layers of the user's own"):
        UDNClassifier.load(path)
    loaded = UDNClassifier.load(path, layers=layers)
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(TypeError, match="got \\['colour'\\]"):
        UDNClassifier.load(path, colour=1)


def test_files_that_are_not_whole(classifier, tmp_path):
    path = tmp_path / "model.udn"
    classifier.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(unbounded.FileError, match="not a complete"):
        UDNClassifier.load(path)
    unbounded.save(classifier.model_, path)
    with pytest.raises(unbounded.FileError, match="not one of an estimator"):
        UDNClassifier.load(path)
    with pytest.raises(FileNotFoundError):
        UDNClassifier.load(tmp_path / "nothing.udn")
    with pytest.raises(NotFittedError):
        UDNClassifier().save(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: e.pop("input_scaling"),
        lambda e: e["input_scaling"].update(scale=[1.0]),
        lambda e: e["classes"].update(dtype="V8"),
        lambda e: e["arguments"]["plain"].update(colour=1),
        lambda e: e["arguments"]["plain"].update(lr=[[1]]),
        lambda e: e["arguments"]["plain"].update(class_weight=[[0, 1.0], [0, 2.0]]),
        lambda e: e["arguments"]["plain"].update(class_weight=[[0, "x"]]),
        lambda e: e["arguments"]["plain"].update(class_weight={"0": 1.0}),
        lambda e: e.update(kind="os.system"),
        lambda e: e.update(history=None),
    ],
)
def test_damaged_descriptions_are_told(damage, classifier, tmp_path):
    path = tmp_path / "model.udn"
    classifier.save(path)
    extra = unbounded.files.read_header(path)["extra"]
    damage(extra["estimator"])
    unbounded.save(classifier.model_, path, extra=json.loads(json.dumps(extra)))
    with pytest.raises(unbounded.FileError):
        UDNClassifier.load(path)


def test_classes_that_are_no_plain_data_are_told(iris, tmp_path):
    X, y = iris
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
    model = UDNClassifier(**SHORT).fit(X, y)
    model.classes_ = days
    with pytest.raises(ValueError, match="without pickle"):
        model.save(tmp_path / "model.udn")


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_pickle_and_joblib(name, request, iris, friedman):
    estimator = request.getfixturevalue(name)
    X, y = iris if name == "classifier" else friedman
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    for copy in (pickle.loads(pickle.dumps(estimator)), joblib.load(file)):
        assert np.array_equal(copy.predict_by_depth(X), estimator.predict_by_depth(X))
        copy.partial_fit(X, y)
    copy = clone(estimator).set_params(epochs=2).partial_fit(X, y, **(
        {"classes": [0, 1, 2]} if name == "classifier" else {}
    ))  # fmt: skip
    assert np.array_equal(pickle.loads(pickle.dumps(copy)).predict(X), copy.predict(X))


# Beside the rest of scikit-learn, pandas and polars


def test_pipelines_and_searches(iris):
    X, y = iris
    pipeline = make_pipeline(PolynomialFeatures(2), UDNClassifier(**SHORT))
    search = GridSearchCV(
        pipeline,
        {"udnclassifier__width": [4, 16], "udnclassifier__depth": [None, unbounded.FixedDepth(1)]},
        cv=2,
    ).fit(X, y)
    assert search.best_score_ > 0.3
    assert search.predict(X).shape == (150,)
    assert cross_val_score(UDNRegressor(**SHORT), X, y, cv=3).shape == (3,)


def test_calibration(iris):
    X, y = iris
    names = np.array(["a", "b", "c"])[y]
    calibrated = CalibratedClassifierCV(UDNClassifier(random_state=0, epochs=20), cv=2)
    assert calibrated.fit(X, names).score(X, names) > 0.8


@pytest.mark.parametrize("library", [pandas, polars], ids=["pandas", "polars"])
def test_frames(library, iris):
    X, y = iris
    columns = ["a", "b", "c", "d"]
    frame = library.DataFrame(dict(zip(columns, X.T, strict=True)))
    target = library.Series("species", y) if library is polars else library.Series(y)
    weights = library.Series(np.ones(150)) if library is pandas else target * 0 + 1.0
    model = UDNClassifier(**SHORT).fit(frame, target, sample_weight=weights)
    assert list(model.feature_names_in_) == columns
    assert np.array_equal(
        model.predict_proba(frame), UDNClassifier(**SHORT).fit(X, y).predict_proba(X)
    )
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a", "c", "d"]])
    assert UDNRegressor(**SHORT).fit(frame, target).predict(frame).shape == (150,)


def test_verbose_says_how_it_goes(iris, capfd):
    UDNClassifier(**SHORT).fit(*iris)
    assert capfd.readouterr() == ("", "")
    UDNClassifier(**SHORT, verbose=1).fit(*iris)
    said = capfd.readouterr().err
    assert "E[ℓ]" in said
    assert re.search(r"\d\d:\d\d<\d\d:\d\d", said)  # the time it took, and the time that remains


def test_devices():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert devices.resolve_device("auto").type == expected
    assert devices.resolve_device("cpu").type == "cpu"


# Odd tables


def test_tiny_and_odd_tables():
    for rows in (2, 3, 5):
        X = np.arange(rows * 2.0).reshape(rows, 2)
        assert UDNClassifier(**SHORT).fit(X, np.arange(rows) % 2).predict(X).shape == (rows,)
        assert np.isfinite(UDNRegressor(**SHORT).fit(X, np.arange(rows)).predict(X)).all()
    same = np.ones((6, 2))
    assert UDNRegressor(**SHORT).fit(same, np.full(6, 7.0)).predict(same) == pytest.approx(7, abs=1)
    constant = np.column_stack([np.full(40, 3.0), np.linspace(0, 1, 40)])
    assert np.isfinite(UDNRegressor(**SHORT).fit(constant, constant[:, 1]).predict(constant)).all()
    with pytest.raises(ValueError, match="one class"):
        UDNClassifier().fit(constant, np.zeros(40))


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_numbers_of_any_size(size, friedman):
    X, y = friedman
    model = UDNRegressor(**SHORT).fit(size * X, 1e5 + y)
    plain = UDNRegressor(**SHORT).fit(X, 1e5 + y)
    assert model.predict(size * X) == pytest.approx(plain.predict(X), rel=1e-4)


def test_a_class_that_is_there_once_is_learnt_from(iris):
    X, y = iris
    y = y.copy()
    y[7] = 3
    model = UDNClassifier(**SHORT).fit(X, y)
    assert model.predict_proba(X).shape == (150, 4)


# Rows


@given(
    st.integers(2, 300),
    st.floats(0, 0.9),
    st.integers(1, 6),
    st.integers(0, 100),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_splits(rows, fraction, num_classes, seed, stratified):
    rng = np.random.RandomState(seed)
    classes = rng.randint(num_classes, size=rows)
    train, held = split(rows, fraction, classes if stratified else None, rng)
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(rows))
    if round(fraction * rows) < MIN_VALIDATION_ROWS:
        assert held.size == 0
    elif not stratified:
        assert held.size == round(fraction * rows)
    else:
        sizes = np.bincount(classes)
        expected = fraction * sizes
        found = np.bincount(classes[held], minlength=sizes.size)
        assert (np.abs(found - expected) < 2).all()
        assert set(classes[train]) == set(classes)


@given(st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_merging_keeps_what_each_row_counts(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 2, size=(50, 2)).astype(float) * 1.0
    y = rng.integers(0, 2, size=50)
    weights = rng.integers(0, 3, size=50).astype(float)
    weights[0] = 1.0
    rows = merge(x, y, weights)

    def counted(x, y, weights):
        total = {}
        for row, label, weight in zip(x.tolist(), y.tolist(), weights.tolist(), strict=True):
            if weight:
                total[(*row, label)] = total.get((*row, label), 0) + weight
        return total

    assert counted(rows.x, rows.y, rows.weights) == counted(x, y, weights)
    assert len(rows.x) == len(counted(x, y, weights))


@given(st.integers(0, 1000), st.integers(-250, 250))
@settings(max_examples=40, deadline=None)
def test_scaling_standardises_and_goes_back(seed, power):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(30, 3)) + np.array([0, 5, -100])) * 10.0**power
    weights = rng.uniform(0.1, 2, 30)
    scaling = Scaling.of(values, weights)
    scaled = scaling.apply(values)
    share = weights / weights.sum()
    assert share @ scaled == pytest.approx(0, abs=1e-10)
    assert share @ scaled**2 == pytest.approx(1)
    assert scaling.undo(scaled) == pytest.approx(values, rel=1e-9, abs=1e-12 * 10.0**power)
