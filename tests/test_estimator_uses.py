"""What users of scikit-learn try next: log loss, searches, further training, evaluation rows."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.datasets import make_blobs, make_friedman1
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unbounded
from unbounded import UDNClassifier, UDNRegressor
from unbounded.estimators import further
from unbounded.estimators.rows import WeightedRows, split
from unbounded.estimators.shares import Shares, divide
from unbounded.files import FileError
from unbounded.likelihoods import FixedNoise
from unbounded.tables.predictions import ByDepth

SHORT = {"epochs": 2, "width": 8, "random_state": 0, "preset": "paper"}


@pytest.fixture(scope="module")
def blobs():
    """Classes so far apart that probabilities round to 1."""
    return make_blobs(90, centers=3, cluster_std=0.1, random_state=0)


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(120, random_state=0)


# Probabilities


def test_probabilities_sum_to_one_and_none_exceeds_it(blobs):
    X, y = blobs
    for more in ({}, {"n_members": 2}):
        model = UDNClassifier(**SHORT | {"epochs": 12, "lr": 0.02, "refit": False} | more).fit(X, y)
        for rows in (X, 100 * X):
            probs = model.predict_proba(rows)
            assert (probs <= 1).all()
            assert np.abs(probs.sum(1) - 1).max() <= 4e-16
            assert (model.predict_log_proba(rows) <= 0).all()
            assert np.exp(model.predict_log_proba(rows)) == pytest.approx(probs, abs=1e-15)
            assert np.isfinite(log_loss(y, probs))  # warnings are errors here
    core = model.model_.predict(torch.tensor(100 * X, dtype=torch.float32)).probs
    assert float(core.max()) <= 1


def test_the_log_loss_of_a_search_is_finite(blobs):
    search = GridSearchCV(
        UDNClassifier(**SHORT | {"epochs": 8}), {"width": [4, 8]}, scoring="neg_log_loss", cv=2
    ).fit(*blobs)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_probabilities_of_a_table_do_not_exceed_one():
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(7))
    logits = 40 * random.normal(size=(7, 500, 3))
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    found = ByDepth(weights, probs / probs.sum(-1, keepdims=True), None).mixture
    assert found.max() <= 1
    assert found.sum(1) == pytest.approx(1, abs=1e-15)


# Further training


@pytest.mark.parametrize("members", [1, 2])
def test_warm_start_goes_on_from_where_it_stands(members, friedman):
    X, y = friedman
    options = {**SHORT, "n_members": members, "refit": False, "warm_start": True}
    model = UDNRegressor(**options).fit(X, y)
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in model.members_]
    scaling, loss = model.input_scaling_, model.history_["elbo"]
    model.fit(X[:80], y[:80] + 1)
    assert model.input_scaling_ is scaling  # what the weights were made for
    assert len(model.history_) == 2
    for state, member in zip(before, model.members_, strict=True):
        after = member.state_dict()
        shared = [k for k in state if k in after and state[k].shape == after[k].shape]
        moved = [(state[k] - after[k]).abs().max().item() for k in shared if "weight" in k]
        assert 0 < max(moved) < 0.3  # moved, but not born anew
    for _ in range(5):
        model.fit(X, y)
    assert model.history_["elbo"][-1] > loss[-1]
    cold = UDNRegressor(**options | {"warm_start": False})
    assert np.array_equal(cold.fit(X, y).predict(X), cold.fit(X, y).predict(X))


def test_warm_start_with_all_rows_and_frames(friedman):
    X, y = friedman
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(side=np.where(y > 14, "up", "down"))
    model = UDNRegressor(**SHORT, warm_start=True, refit=True).fit(frame, y)
    encoding = model.encoding_
    model.fit(frame[:60], y[:60])
    assert model.encoding_ is encoding
    assert model.refit_history_ is not None


def divided(rows: int, before: Shares | None, seed: int, **changes):
    """Rows 0 … `rows` − 1 and how they are divided."""
    x = np.arange(float(rows))[:, None]
    given = WeightedRows(x, x, np.ones(rows))._replace(**changes)
    return divide(given, 0.15, before, np.random.RandomState(seed))


def test_rows_that_were_held_out_stay_so():
    first = divided(200, None, 0)
    assert len(first.held) == 30
    learnt, held = split(200, 0.15, None, np.random.RandomState(0))
    assert np.array_equal(first.held, held)
    assert np.array_equal(first.learnt, learnt)
    for rows in (200, 220, 400):  # another seed, and further rows
        again = divided(rows, first.shares, 1)
        assert set(held) <= set(again.held)
        assert set(learnt) <= set(again.learnt)
        assert len(again.held) == round(0.15 * rows)
    third = divided(300, again.shares, 2)
    assert set(third.held) == {row for row in again.held if row < 300}
    classes = divided(200, first.shares, 1, y=np.arange(200) % 2)  # other targets: other rows
    assert set(classes.held) != set(held)
    assert set(divided(40, first.shares, 1).held) == {row for row in held if row < 40}
    for rows, few in ((5, 0), (6, 2), (12, 4), (23, 7), (24, 8), (53, 8), (60, 9)):
        assert len(divided(rows, None, 0).held) == few
    one = WeightedRows(first.held[:, None].astype(float), first.held[:, None] * 1.0, np.ones(30))
    assert len(divide(one, 0.15, first.shares, np.random.RandomState(0)).learnt) == 22


@pytest.mark.parametrize("through", ["memory", "file", "pickle"])
def test_warm_start_never_learns_held_out_rows(friedman, through, tmp_path):
    X, y = friedman
    model = UDNRegressor(**SHORT | {"random_state": None, "refit": False}, warm_start=True)
    before = model.fit(X[:100], y[:100])._shares
    if through == "file":
        model.save(tmp_path / "m.udn")
        model = UDNRegressor.load(tmp_path / "m.udn")
    elif through == "pickle":
        model = pickle.loads(pickle.dumps(model))
    after = model.fit(X, y)._shares
    assert len(before.held) == 15
    assert set(before.held) < set(after.held)
    assert set(before.learnt) < set(after.learnt)
    assert len(model.conformal_scores_) == len(after.held)
    # What partial_fit learns from is not held out any more.
    model.partial_fit(X[:100], y[:100])
    assert not set(before.held) & set(model._shares.held)
    assert set(before.held) < set(model._shares.learnt)


def test_marks_in_a_file_are_checked():
    found = Shares(np.array([1, 2], np.uint32), np.array([7], np.uint32))
    for one, same in zip(Shares.from_dict(found.to_dict(), "shares"), found, strict=True):
        assert np.array_equal(one, same)
    for wrong in ({"held": "AAAA", "learnt": ""}, {"held": "ß", "learnt": ""}, {"held": ""}, 3):
        with pytest.raises(FileError, match="shares"):
            Shares.from_dict(wrong, "shares")


def test_warm_start_says_what_does_not_fit(blobs):
    X, y = blobs
    model = UDNClassifier(**SHORT, warm_start=True).fit(X[y < 2], y[y < 2])
    with pytest.raises(ValueError, match=r"classes \[2\] are not among"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="3 features, but UDNClassifier is expecting 2"):
        model.fit(np.ones((9, 3)), [0, 1, 0] * 3)
    with pytest.raises(ValueError, match="warm_start trains 1 members on, n_members is 2"):
        model.set_params(n_members=2).fit(X[y < 2], y[y < 2])
    numbers = UDNRegressor(**SHORT, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"trains a network of width \d+ on, width is 99"):
        numbers.set_params(width=99).fit(X, y)
    numbers.set_params(width=SHORT["width"])
    for name, value in {
        "preset": "settled",
        "depth": unbounded.TruncatedPoisson(2.0),
        "likelihood": unbounded.Gaussian(FixedNoise(0.5)),
    }.items():
        before = getattr(numbers, name)
        with pytest.raises(ValueError, match=f"made with another {name}"):
            numbers.set_params(**{name: value}).fit(X, y)
        numbers.set_params(**{name: before}).fit(X, y)
    with pytest.raises(ValueError, match="column 'x1' holds 'one' in row 2: a number was expected"):
        numbers.fit([[1.0, 2.0], [3.0, "one"]], [1.0, 2.0])
    with pytest.raises(ValueError, match="y has 2 targets, 1 before"):
        numbers.fit(X, np.column_stack([y, y]))


def test_a_fit_that_fails_changes_nothing(blobs):
    X, y = blobs
    names = np.array(["a", "b", "c"])[y]
    model = UDNClassifier(**SHORT).fit(X, names)
    before, held = model.predict_proba(X), dict(vars(model))
    other = pd.DataFrame({"c": names, "x": X[:, 0]})
    for rows, targets in [(X, np.char.upper(names)), (other, names), (X, np.zeros(90))]:
        with pytest.raises(ValueError, match=r"epochs|one class"):
            model.set_params(epochs=0).fit(rows, targets)
        assert vars(model.set_params(epochs=2)) == held
    assert np.array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match="epochs"):
        (fresh := UDNClassifier(epochs=0)).fit(X, y)
    assert not hasattr(fresh, "classes_")


def test_small_steps_of_partial_fit_take_one_thread(blobs, monkeypatch):
    seen, usual = [], further.step
    monkeypatch.setattr(
        further, "step", lambda *a, **k: seen.append(torch.get_num_threads()) or usual(*a, **k)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        UDNRegressor(**SHORT).partial_fit(*blobs)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Evaluation rows


@pytest.mark.parametrize("Estimator", [UDNClassifier, UDNRegressor])
def test_evaluation_rows_take_the_place_of_held_out_ones(Estimator, blobs):
    X, y = blobs
    model = Estimator(**SHORT).fit(X[:60], y[:60], eval_set=(X[60:], y[60:]))
    assert "val_log_score" in model.history_.columns
    assert model.refit_history_ is None  # all rows were learnt from already
    # All rows of X are learnt from, none of the others: their inputs are scaled by X alone.
    assert model.input_scaling_.center == pytest.approx(X[:60].mean(0))
    again = Estimator(**SHORT).fit(X[:60], y[:60], eval_set=[(X[60:], y[60:])])
    assert np.array_equal(model.predict(X), again.predict(X))
    # They do choose: turned round they make the first epochs the best.
    other = Estimator(**SHORT).fit(X[:60], y[:60], eval_set=(X[60:], y[60:][::-1]))
    assert other.history_["val_log_score"] != model.history_["val_log_score"]


def test_evaluation_rows_of_frames():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=80), "b": random.choice(["x", "y"], 80)})
    y = (frame["b"] == "x").to_numpy()
    model = UDNClassifier(**SHORT).fit(
        frame[:60], y[:60], eval_set=(frame[60:].assign(b="z"), y[60:])
    )
    assert "val_log_score" in model.history_.columns
    with pytest.raises(ValueError, match="eval_set: column 'a' holds 'one' in row 1"):
        model.fit(frame[:60], y[:60], eval_set=(frame[60:].assign(a="one"), y[60:]))


def test_bad_evaluation_rows_are_told(blobs):
    X, y = blobs
    model = UDNClassifier(**SHORT)
    with pytest.raises(ValueError, match=r"eval_set must be a pair \(X, y\)"):
        model.fit(X, y, eval_set=X)
    with pytest.raises(ValueError, match="got two pairs"):
        model.fit(X, y, eval_set=[(X, y), (X, y)])
    with pytest.raises(ValueError, match=r"eval_set: classes \[7\] are not among"):
        model.fit(X, y, eval_set=(X, np.where(y == 2, 7, y)))
    with pytest.raises(ValueError, match=r"eval_set: .*2 features"):
        model.fit(X, y, eval_set=(X[:, :1], y))


# Parts in a search


def test_arguments_of_the_family_in_a_search(blobs):
    X, y = blobs
    grid = {"depth__spread": [1.0, 3.0], "depth__place": [2.0]}
    search = GridSearchCV(UDNClassifier(**SHORT | {"preset": "settled"}), grid, cv=2).fit(X, y)
    best = search.best_estimator_.depth
    assert isinstance(best, unbounded.TruncatedNormal)
    assert best.place == pytest.approx(2)
    assert {one["depth__spread"] for one in search.cv_results_["params"]} == {1.0, 3.0}


def test_arguments_of_parts_are_read_and_set():
    model = UDNClassifier(
        depth=unbounded.TruncatedPoisson(4.0, limit=9), weight_prior=unbounded.GaussianWeights(0.5)
    )
    found = model.get_params()
    assert found["depth__rate"] == 4.0
    assert found["depth__limit"] == 9
    assert found["weight_prior__scale"] == 0.5
    assert "depth__rate" not in model.get_params(deep=False)
    first = model.depth
    model.set_params(depth__rate=2.0, weight_prior__scale=2.0, width=3)
    assert (model.depth.rate, model.depth.limit) == (pytest.approx(2.0), 9)
    assert model.weight_prior.scale == 2.0
    assert model.width == 3
    assert first.rate == pytest.approx(4.0)  # the argument itself stays as it was given
    model.set_params(depth=unbounded.FiniteDepth(3), depth__max_depth=5)
    assert model.depth.max_depth() == 5
    with pytest.raises(ValueError, match="depth: FiniteDepth has no argument 'rate': it has max"):
        model.set_params(depth__rate=1.0)
    with pytest.raises(ValueError, match="depth_prior is None: give a part first"):
        model.set_params(depth_prior__rate=1.0)
    for layers in (unbounded.Dense, lambda i, o: unbounded.Dense(i, 4, o)):
        assert "layers__width" not in UDNClassifier(layers=layers).get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
        model.set_params(colour__rate=1.0)


# Inputs and places that cannot be used


def test_sparse_input_is_refused_with_a_remedy(blobs):
    X, y = blobs
    for kind in (sparse.csr_matrix, sparse.coo_array):
        for options in ({}, {"categorical_features": [0]}):
            with pytest.raises(TypeError, match=r"Sparse data was passed.*toarray\(\)"):
                UDNClassifier(**SHORT, **options).fit(kind(X), y)


def test_a_device_that_is_not_there_is_told(blobs, tmp_path):
    missing = "cuda:99" if torch.cuda.is_available() else "cuda"
    for name in (missing, torch.device(missing), "graphics"):
        with pytest.raises(ValueError, match=r"the device .* cannot be used"):
            UDNClassifier(**SHORT, device=name).fit(*blobs)
    model = UDNClassifier(**SHORT).fit(*blobs)
    model.save(tmp_path / "model.udn")
    with pytest.raises(ValueError, match=r"the device .* cannot be used"):
        UDNClassifier.load(tmp_path / "model.udn", device=missing)


# Around the estimators


def test_weights_are_routed_and_frames_pass_through_pipelines(blobs):
    X, y = blobs
    frame = pd.DataFrame(X, columns=[f"c{k}" for k in range(X.shape[1])])
    weights = np.where(y == y[0], 1.0, 3.0)
    options = {"epochs": 2, "width": 8, "random_state": 0}
    with sklearn.config_context(enable_metadata_routing=True):
        final = UDNClassifier(**options).set_fit_request(sample_weight=True)
        final.set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, final).set_output(transform="pandas")
        routed = pipeline.fit(frame, y, sample_weight=weights)
        scores = cross_val_score(pipeline, frame, y, cv=2, params={"sample_weight": weights})
    assert np.isfinite(scores).all()
    assert list(routed[-1].feature_names_in_) == list(frame.columns)
    scaled = routed[0].transform(frame)
    direct = UDNClassifier(**options).fit(scaled, y, sample_weight=weights)
    assert (direct.predict_proba(scaled) == routed.predict_proba(frame)).all()


def test_searches_in_several_threads_find_what_one_finds(blobs):
    X, y = blobs
    grid = {"depth__place": [1.5, 3.0], "width": [8]}
    found = []
    for jobs in (1, 2):
        model = UDNClassifier(epochs=2, random_state=0)
        search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss", n_jobs=jobs)
        with joblib.parallel_backend("threading"):
            found.append(search.fit(X, y).cv_results_["mean_test_score"])
    assert found[0] == pytest.approx(found[1], rel=1e-12)
