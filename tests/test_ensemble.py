"""Deep ensembles of UDNs behind the estimators: trained at once, predicting as one mixture."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import unbounded as ub
from helpers import classes, numbers
from unbounded import UDNClassifier, UDNRegressor, metrics
from unbounded.likelihoods import Likelihood
from unbounded.tables import TableModel

QUICK = {"epochs": 12, "patience": None, "random_state": 3, "width": 12}


@pytest.fixture(scope="module")
def classifier():
    x, y = classes(120)
    return UDNClassifier(n_members=3, **QUICK).fit(x.numpy(), y.numpy())


@pytest.fixture(scope="module")
def regressor():
    x, y = numbers(120)
    return UDNRegressor(n_members=3, **QUICK).fit(x.numpy(), y.numpy())


def lone(estimator, member):
    """The same estimator with one of its members alone."""
    one = pickle.loads(pickle.dumps(estimator))
    one.members_ = [estimator.members_[member]]
    one.model_ = estimator.members_[member]
    return one


def test_class_probabilities_are_the_members_average(classifier):
    x = classes(40, seed=1)[0].numpy()
    each = [lone(classifier, r).predict_proba(x) for r in range(3)]
    assert not np.allclose(each[0], each[1])
    np.testing.assert_allclose(classifier.predict_proba(x), np.mean(each, 0), rtol=1e-9)


def test_depths_add_up(classifier, regressor):
    x = classes(40, seed=1)[0].numpy()
    q = classifier.depth_probs_
    assert q.sum() == pytest.approx(1)
    assert len(classifier.depths_) == len(q) == classifier.max_depth_
    by_depth = classifier.predict_by_depth(x)
    np.testing.assert_allclose(np.tensordot(q, by_depth, 1), classifier.predict_proba(x), rtol=1e-7)
    means, stds = regressor.predict_by_depth(x, return_std=True)
    q = regressor.depth_probs_
    mean, std = regressor.predict(x, return_std=True)
    np.testing.assert_allclose(q @ means, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(q @ (stds**2 + means**2) - mean**2, std**2, rtol=1e-6, atol=1e-9)


def test_numbers_are_a_mixture_of_mixtures(regressor):
    """Means average; variances are the average within plus the variance between members."""
    x = numbers(40, seed=1)[0].numpy()
    parts = [lone(regressor, r).predict(x, return_std=True) for r in range(3)]
    means, stds = (np.stack(part) for part in zip(*parts, strict=True))
    mean, std = regressor.predict(x, return_std=True)
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(std**2, (stds**2).mean(0) + means.var(0), rtol=1e-6)
    low, high = regressor.predict_quantiles(x, [0.05, 0.95])
    assert (low < mean).all()
    assert (mean < high).all()


@pytest.mark.parametrize("ensemble", ["deep", "shared"])
def test_intervals_of_a_table_are_those_of_the_whole_mixture(ensemble):
    x, y = numbers(120)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y.numpy().ravel()})
    options = {**QUICK, "n_members": 3, "ensemble": ensemble, "references": False}
    options.pop("random_state")
    model = TableModel.fit(frame, "y", **options, device="cpu")
    found = model.by_depth(rows := model.encoding.transform_frame(frame))
    columns = found.columns([], 0.8, False)
    low, high = model.estimator.predict_quantiles(rows, [0.1, 0.9])
    np.testing.assert_allclose(columns["lower"], low, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(columns["upper"], high, rtol=1e-6, atol=1e-9)
    q, means, stds = model.estimator.predict_components(rows)
    mean, std = model.estimator.predict(rows, return_std=True)
    np.testing.assert_allclose(q @ means, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(q @ (stds**2 + (means - mean) ** 2), std**2, rtol=1e-6)
    nll = metrics.mixture_nll(frame.y.to_numpy(), q, means, stds)
    assert model.evaluate(frame)["nll"] == pytest.approx(nll)


@pytest.mark.parametrize("kind", [UDNClassifier, UDNRegressor])
def test_the_first_member_is_the_lone_model(kind):
    """Trained together or alone: the same to rounding."""
    x, y = (classes if kind is UDNClassifier else numbers)(90)
    options = {**QUICK, "calibrate": False}  # one factor is for all members together
    ensemble = kind(n_members=2, **options).fit(x.numpy(), y.numpy())
    alone = kind(**options).fit(x.numpy(), y.numpy())
    assert len(ensemble.members_) == 2
    one, other = ensemble.members_[0].state_dict(), alone.model_.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=2e-3, atol=2e-4)


def test_files_and_pickles_hold_all_members(classifier, regressor, tmp_path):
    x = classes(20, seed=2)[0].numpy()
    for estimator, ask in ((classifier, "predict_proba"), (regressor, "predict")):
        path = tmp_path / "ensemble.udn"
        estimator.save(path)
        for again in (type(estimator).load(path), pickle.loads(pickle.dumps(estimator))):
            assert len(again.members_) == 3
            np.testing.assert_array_equal(getattr(again, ask)(x), getattr(estimator, ask)(x))
        assert again.get_params()["n_members"] == 3
    assert torch.equal(ub.load(path).depth.mu, regressor.model_.depth.mu)


def test_a_file_without_its_siblings_is_refused(classifier, tmp_path):
    from unbounded.files import FileError, read_tensors, write_tensors

    path = tmp_path / "ensemble.udn"
    classifier.save(path)
    tensors, metadata = read_tensors(path)
    write_tensors(path, {k: v for k, v in tensors.items() if "sibling.2" not in k}, metadata)
    with pytest.raises(FileError, match="holds 0 tensors"):
        UDNClassifier.load(path)


def test_partial_fit_trains_each_member_as_if_it_were_alone():
    x, y = (part.numpy() for part in classes(80))
    options = {"random_state": 0, "width": 8}
    both = UDNClassifier(**options, n_members=2)
    one = UDNClassifier(**options)
    for rows in (slice(0, 40), slice(40, 80)):
        both.partial_fit(x[rows], y[rows], classes=[0, 1])
        one.partial_fit(x[rows], y[rows], classes=[0, 1])
    assert len(both.members_) == 2
    assert both.stopped_ == "partial_fit"
    np.testing.assert_allclose(lone(both, 0).predict_proba(x), one.predict_proba(x), rtol=1e-9)
    assert not np.allclose(lone(both, 1).predict_proba(x), one.predict_proba(x))


def test_partial_fit_trains_the_members_that_there_are():
    x, y = (part.numpy() for part in classes(80))
    model = UDNClassifier(random_state=0, width=8, n_members=2).partial_fit(x, y, classes=[0, 1])
    model.members_ = copy.deepcopy(model.members_)
    before = [m.network.heads["1"].weight.detach().clone() for m in model.members_]
    model.partial_fit(x, y)
    for member, was in zip(model.members_, before, strict=True):
        assert not torch.equal(member.network.heads["1"].weight, was)


def test_members_of_different_layers_predict_few_rows_too(classifier):
    x, y = (part.numpy() for part in classes(120))
    other = UDNClassifier(**{**QUICK, "width": 7}).fit(x, y)
    both = lone(classifier, 0)
    both.members_ = [*both.members_, other.model_]
    np.testing.assert_allclose(both.predict_proba(x[:3]), both.predict_proba(x)[:3], rtol=1e-9)


def test_refusals(classifier):
    x, y = (part.numpy() for part in classes(40))
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="n_members must be 'auto' or an integer from 1"):
            UDNClassifier(n_members=bad).fit(x, y)

    class Scaled(Likelihood):
        """Has a parameter, so that members differ in it."""

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def log_prob(self, outputs, y):
            return -(outputs[..., 0] - y[:, 0]).abs() * self.scale + self.scale.log()

    from unbounded.predictive import combine

    likelihood = Scaled()
    predictions = [likelihood.predict(torch.zeros(1, 2, 1), torch.zeros(1)) for _ in range(2)]
    with pytest.raises(TypeError, match="differ in the parameters of Scaled"):
        combine(predictions)
