"""Rows with several labels: the likelihood, and `UDNClassifier` with an indicator matrix."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_classifier_multioutput

from unbounded import FileError, MultiLabel, UDNClassifier
from unbounded.estimators.calibration import HeldOutPredictions, calibrate
from unbounded.estimators.rows import Scalings, WeightedRows

SHORT = {"epochs": 6, "width": 16, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    return make_multilabel_classification(240, 8, n_classes=4, random_state=0)


@pytest.fixture(scope="module")
def fitted(rows):
    return UDNClassifier(**{**SHORT, "epochs": 30}).fit(*rows)


# The likelihood


def test_labels_are_independent_given_the_depth():
    outputs, y = torch.randn(3, 5, 2).double(), torch.tensor([[0, 1]] * 5)
    p = outputs.sigmoid()
    expected = (1 - p[..., 0]).log() + p[..., 1].log()
    likelihood = MultiLabel(2)
    assert torch.allclose(likelihood.log_prob(outputs, y), expected)
    q = torch.tensor([0.2, 0.3, 0.5]).double()
    prediction = likelihood.predict(outputs, q.log())
    assert torch.allclose(prediction.probs, (q[:, None, None] * p).sum(0))
    assert (prediction.classes == (prediction.probs > 0.5)).all()
    assert prediction.log_prob(y).shape == (5,)
    assert torch.allclose(prediction.log_prob(y).exp(), (q[:, None] * expected.exp()).sum(0))


def test_the_guess_is_that_of_frequencies():
    y = torch.tensor([[0, 1], [0, 1], [1, 1]])
    share = torch.tensor([2 / 5, 4 / 5]).double()
    expected = torch.where(y == 1, share, 1 - share).log().sum(1)
    assert torch.allclose(MultiLabel(2).guess(y), expected)


@pytest.mark.parametrize("y", [torch.tensor([0, 1]), torch.tensor([[0, 2]]), torch.zeros(3, 3)])
def test_other_targets_are_told(y):
    with pytest.raises(ValueError, match="targets must"):
        MultiLabel(2).check_targets(y)


# The estimator


def test_predictions_have_the_shapes_of_scikit_learns(rows, fitted):
    X, y = rows
    other = MLPClassifier((8,), max_iter=400, random_state=0, tol=1e-2).fit(X, y)
    for name in ("predict", "predict_proba", "predict_log_proba"):
        ours, theirs = getattr(fitted, name)(X), getattr(other, name)(X)
        assert ours.shape == theirs.shape == (240, 4)
        assert ours.dtype.kind == theirs.dtype.kind
    assert (fitted.classes_ == other.classes_).all()
    proba = fitted.predict_proba(X)
    assert ((proba >= 0) & (proba <= 1)).all()
    assert (fitted.predict(X) == (proba > 0.5)).all()
    assert np.exp(fitted.predict_log_proba(X)) == pytest.approx(proba)
    odds = fitted.decision_function(X)
    assert odds == pytest.approx(np.log(proba) - np.log1p(-proba), rel=1e-6, abs=1e-9)
    by_depth = fitted.predict_by_depth(X)
    assert np.tensordot(fitted.depth_probs_, by_depth, 1) == pytest.approx(proba, abs=1e-6)
    assert fitted.score(X, y) == (fitted.predict(X) == y).all(1).mean()


def test_it_learns():
    X, y = make_multilabel_classification(700, 8, n_classes=4, random_state=1)
    model = UDNClassifier(random_state=0, quality="fast").fit(X[:500], y[:500])
    proba = model.predict_proba(X[500:])
    assert roc_auc_score(y[500:], proba) > 0.8
    share = y[:500].mean(0)
    ours = np.mean([log_loss(y[500:, j], proba[:, j]) for j in range(4)])
    guess = np.mean([log_loss(y[500:, j], np.full(200, share[j])) for j in range(4)])
    assert ours < 0.8 * guess


def test_scikit_learns_check_and_tag():
    check_classifier_multioutput("UDNClassifier", UDNClassifier(**SHORT))
    assert get_tags(UDNClassifier()).classifier_tags.multi_label


def test_forms_of_labels_agree(rows):
    X, y = rows
    expected = UDNClassifier(**SHORT).fit(X, y).predict_proba(X)
    columns = dict(zip("abcd", y.T, strict=True))
    for form in (y.tolist(), y.astype(bool), y.astype(float), sparse.csr_matrix(y)):
        assert (UDNClassifier(**SHORT).fit(X, form).predict_proba(X) == expected).all()
    for form in (pd.DataFrame(columns), pl.DataFrame(columns)):
        assert (UDNClassifier(**SHORT).fit(X, form).predict_proba(X) == expected).all()


def test_a_weight_is_a_repetition(rows):
    X, y = rows
    weights = np.where(np.arange(len(X)) % 3 == 0, 2, 1)
    weighted = UDNClassifier(**SHORT).fit(X, y, sample_weight=weights)
    index = np.repeat(np.arange(len(X)), weights)
    repeated = UDNClassifier(**SHORT).fit(X[index], y[index])
    assert (weighted.predict_proba(X) == repeated.predict_proba(X)).all()


def test_frames_with_texts_and_evaluation_rows(rows):
    X, y = rows
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    frame["city"] = np.where(X[:, 0] > X[:, 1], "Rome", "Oslo")
    model = UDNClassifier(**SHORT).fit(frame[:180], y[:180], eval_set=(frame[180:], y[180:]))
    assert model.encoding_ is not None
    assert model.predict(frame).shape == (240, 4)


def test_ensembles_and_files(rows, fitted, tmp_path):
    X, y = rows
    ensemble = UDNClassifier(**SHORT, n_members=2).fit(X, y)
    for model in (fitted, ensemble):
        model.save(tmp_path / "model")
        loaded = UDNClassifier.load(tmp_path / "model")
        assert loaded.predict_proba(X) == pytest.approx(model.predict_proba(X), rel=1e-12)
        assert (loaded.predict(X) == model.predict(X)).all()
        assert (loaded.classes_ == model.classes_).all()
    described = fitted._describe_targets()
    assert described == {"num_labels": 4}
    for damaged in ({"num_labels": 3}, {"num_labels": "4"}, {}):
        with pytest.raises(FileError):
            clone_of(fitted)._rebuild_targets(damaged, "here")


def clone_of(fitted):
    other = clone(fitted)
    other.model_ = fitted.model_
    return other


def test_partial_fit_and_warm_start(rows):
    X, y = rows
    model = UDNClassifier(**SHORT).partial_fit(X[:100], y[:100])
    before = model.predict_proba(X)
    model.partial_fit(X[100:], y[100:], classes=np.arange(4))
    assert not np.allclose(before, model.predict_proba(X))
    warm = UDNClassifier(**SHORT, warm_start=True).fit(X, y).fit(X, y)
    for other in (y[:, 0], y[:, :3]):
        with pytest.raises(ValueError, match="4 labels since"):
            warm.fit(X, other)
        with pytest.raises(ValueError, match="4 labels since"):
            model.partial_fit(X, other)


def test_pipelines_searches_and_cross_validation(rows):
    X, y = rows
    pipeline = make_pipeline(StandardScaler(), UDNClassifier(**SHORT))
    assert cross_val_score(pipeline, X, y, cv=2).shape == (2,)
    grid = {"udnclassifier__width": [8, 16]}
    search = GridSearchCV(pipeline, grid, scoring="roc_auc", cv=2).fit(X, y)
    assert search.predict_proba(X).shape == (240, 4)
    assert 0 < search.best_score_ < 1


def test_a_label_that_never_changes_and_a_gap_are_fine_or_told(rows):
    X, y = rows
    constant = np.column_stack([y, np.zeros(240, int)])
    assert UDNClassifier(**SHORT).fit(X, constant).predict_proba(X)[:, 4].max() < 0.5
    for bad, match in [
        (np.where(y == 1, 2, y), r"column \d holds '2' in row"),
        (pd.DataFrame(np.where(y == 1, 3, y), columns=list("abcd")), "column '[abcd]' holds '3'"),
        (np.where(y == 1, "yes", "no"), "holds '(yes|no)' in row 1"),
        (np.where(y == 1, np.nan, y), "NaN"),
        (y * 0.5, "holds '0.5' in row"),
    ]:
        with pytest.raises(ValueError, match=match):
            UDNClassifier(**SHORT).fit(X, bad)
    with pytest.raises(ValueError, match="class_weight is for classes"):
        UDNClassifier(**SHORT, class_weight="balanced").fit(X, y)


def test_certainty_is_calibrated(rows):
    X, y = rows
    model = UDNClassifier(**{**SHORT, "calibrate": False, "epochs": 40}).fit(X[:60], y[:60])
    held = WeightedRows(X[60:], y[60:], np.ones(180))

    def loss():
        proba = model.predict_proba(X[60:])
        return -np.where(y[60:] == 1, np.log(proba), np.log1p(-proba)).sum(1).mean()

    before = loss()
    scalings = Scalings(model.input_scaling_, None)
    factor = calibrate(HeldOutPredictions(model.members_, scalings, held))
    assert factor != 1
    assert loss() < before
    assert abs(np.log(calibrate(HeldOutPredictions(model.members_, scalings, held)))) < 0.1
