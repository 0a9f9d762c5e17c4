"""Early exits: rows leave when they are sure, and are computed no further."""

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification

import unbounded as ub
from helpers import classes, classifier, numbers
from unbounded import UDNClassifier, UDNRegressor
from unbounded.exits import EarlyExit, RunningMixture, left_early


def sharpened(model, factor=2.0):
    """Heads that are sure of some rows, and not of others."""
    with torch.no_grad():
        for parameter in model.network.hidden.parameters():  # newborn blocks are identities
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for parameter in model.network.heads.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3).mul_(factor)
    return model.eval()


def models():
    normal = ub.TruncatedNormal(3.0, 1.5)
    x, _ = classes(40)
    torch.manual_seed(0)
    yield "dense", classifier(normal), x
    yield "first", ub.UDN(ub.Dense(3, 8, 2), ub.Categorical(2), ub.FixedDepth(3)), x
    yield "one head", ub.UDN(ub.Dense(3, 8, 2, shares_head=True), ub.Categorical(2), normal), x
    yield "bernoulli", ub.UDN(ub.PreNormDense(3, 8, 1), ub.Bernoulli(), normal), x
    yield "labels", ub.UDN(ub.TableDense(3, 8, 2), ub.MultiLabel(2), normal), x
    shared = ub.Members(ub.Categorical(3), 4)
    yield "members", ub.UDN(ub.TrunkDense(3, 8, 3, members=4), shared, normal), x
    images = torch.randn(12, 1, 8, 8)
    yield "conv", ub.UDN(ub.ResidualConv(1, 3, width=4), ub.Categorical(3), normal), images
    tokens = torch.randint(5, (10, 4))
    mask = torch.rand(10, 4) > 0.3
    net = ub.UDN(ub.TransformerLayers(5, 16, heads=2), ub.Tokens(5), normal)
    yield "tokens", net, (tokens, mask)


MODELS = {name: (sharpened(model), x) for name, model, x in models()}


def whole(model, x):
    """Running mixtures by hand: q renormalised over the depths so far, `(depth, batch, …)`."""
    found = model.predict(x)
    first, last = model.support()
    members = model.likelihood.count
    q = found.depth_log_probs.exp().view(members, -1).sum(0)
    each = found.likelihood.predict(found.outputs, found.depth_log_probs)
    by_depth = getattr(each, "log_probs_by_depth", None)
    by_depth = found.outputs.log_softmax(-1) if by_depth is None else by_depth
    by_depth = by_depth.exp().unflatten(0, (members, len(q))).mean(0)
    q = q.view(-1, *[1] * (by_depth.dim() - 1))
    return (q * by_depth).cumsum(0) / q.cumsum(0), first, last


@pytest.mark.parametrize("name", MODELS)
def test_at_one_it_is_the_whole_mixture(name):
    model, x = MODELS[name]
    early, full = model.predict(x, exit=1), model.predict(x)
    torch.testing.assert_close(early.probs, full.probs, rtol=1e-5, atol=1e-6)
    assert early.depths.unique().tolist() == [model.support()[1]]
    answers = full.tokens if hasattr(full, "tokens") else full.classes
    assert torch.equal(early.classes, answers)


@pytest.mark.parametrize("name", ["dense", "conv", "labels"])
@pytest.mark.parametrize("level", [0.4, EarlyExit(0.6, bounded=True), 1.0])
def test_from_what_all_depths_said_rows_leave_alike(name, level):
    model, x = MODELS[name]
    early, full = model.predict(x, exit=level), model.predict(x)
    by_depth = torch.stack(
        [full.likelihood.predict(o[None], o.new_zeros(1)).log_probs for o in full.outputs]
    )
    again = left_early(
        model.likelihood, full.depth_log_probs, by_depth, level, first=model.support()[0]
    )
    assert torch.equal(again.depths, early.depths)
    torch.testing.assert_close(again.log_probs, early.log_probs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_rows_leave_at_the_first_depth_that_is_sure(name):
    model, x = MODELS[name]
    running, first, last = whole(model, x)
    labels = isinstance(model.likelihood.single, ub.MultiLabel)
    certain = torch.maximum(running, 1 - running) if labels else running.amax(-1)
    if isinstance(x, tuple):  # padding has no say
        certain = torch.where(x[1], certain, 1.0)
    certain = certain.flatten(2).amin(-1) if certain.dim() > 2 else certain
    certain[-1] = 1
    # A level between two values of the first depth: some leave there, and rounding decides nothing.
    levels = certain[0].sort().values
    half = len(levels) // 2
    level = float(levels[half : half + 2].mean()) if last > first else 0.9
    early = model.predict(x, exit=level)
    at = (certain >= level).long().argmax(0)
    assert early.depths.tolist() == (first + at).tolist()
    rows = torch.arange(len(at))
    torch.testing.assert_close(early.probs, running[at, rows], rtol=1e-5, atol=1e-6)
    if last > first:
        assert len(early.depths.unique()) > 1
    split = ub.predict(model, x, 7, exit=level)
    torch.testing.assert_close(split.probs, early.probs, rtol=1e-5, atol=1e-6)
    assert torch.equal(split.depths, early.depths)


@pytest.mark.parametrize("name", ["dense", "conv", "members", "tokens"])
def test_rows_that_left_are_not_computed(name):
    model, x = MODELS[name]
    seen = []
    axis = model.layers.rows_axis
    hooks = [
        layer.register_forward_hook(lambda _, given, out: seen.append(out.shape[axis]))
        for layer in model.network.hidden.values()
    ]
    try:
        depths = model.predict(x, exit=0.7).depths
    finally:
        for hook in hooks:
            hook.remove()
    assert seen == [int((depths >= k).sum()) for k in range(1, int(depths.max()) + 1)]


def test_a_bounded_exit_keeps_its_promise():
    model, x = MODELS["dense"]
    full = model.predict(x).probs
    for level in (0.9, 0.7, 0.5):
        early = model.predict(x, exit=EarlyExit(level, bounded=True))
        distance = (early.probs - full).abs().sum(-1) / 2
        left = early.depths < model.support()[1]
        assert bool((distance[left] <= 1 - level + 1e-6).all())
        assert torch.equal(early.classes[left], full.argmax(-1)[left])
        plain = model.predict(x, exit=level)
        assert bool((plain.depths <= early.depths).all())
    assert bool(left.any())


def test_a_running_mixture_is_a_sum():
    torch.manual_seed(0)
    q, p = torch.rand(4), torch.rand(4, 5, 3)
    mixture = RunningMixture()
    for k in range(4):
        mixture.add(q[k].log(), p[k].log())
    torch.testing.assert_close(mixture.log_total.exp(), (q[:, None, None] * p).sum(0))
    torch.testing.assert_close(mixture.log_mass.exp(), q.sum())


def test_what_cannot_be_sure_is_refused():
    x, _ = numbers(5)
    with pytest.raises(ValueError, match=r"exit is for classes, labels and tokens.*Gaussian"):
        ub.UDN(ub.Dense(3, 4, 1), ub.Gaussian()).predict(x, exit=0.9)
    sequences = ub.Tokens(5, mix="sequence")
    net = ub.UDN(ub.TransformerLayers(5, 16, heads=2), sequences)
    with pytest.raises(ValueError, match="mix='sequence'"):
        net.predict(torch.zeros(2, 3, dtype=torch.long), exit=0.9)
    for level in (0, 1.5, float("nan"), True, "high"):
        with pytest.raises(ValueError, match="an exit must be above 0 and at most 1"):
            MODELS["dense"][0].predict(MODELS["dense"][1], exit=level)


# Nearness to rows would be added at all depths alike, and rows would stop at the first.
SHORT = {"epochs": 4, "width": 8, "random_state": 0, "least_squares": False}


@pytest.mark.parametrize("options", [{}, {"ensemble": "shared", "n_members": 3}])
def test_estimators(options):
    X, y = make_classification(120, 5, random_state=0)
    names = np.array(["no", "yes"])[y]
    short = {**SHORT, "depth": ub.TruncatedPoisson(3.0)}
    model = UDNClassifier(**short, **options).fit(X, names)
    full = model.predict_proba(X)
    probs, depths = model.predict_proba(X, exit=1)
    np.testing.assert_allclose(probs, full, atol=1e-7)
    assert set(depths) == {model.max_depth_}
    probs, depths = model.predict_proba(X, exit=0.8)
    assert probs.shape == full.shape
    assert depths.shape == (len(X),)
    assert len(set(depths)) > 1
    early = depths < model.max_depth_
    assert (probs[early].max(1) >= 0.8).all()
    assert set(model.predict(X, exit=0.8)[0]) <= {"no", "yes"}


def test_members_leave_each_by_itself():
    X, y = make_classification(120, 5, random_state=0)
    short = {**SHORT, "depth": ub.TruncatedPoisson(3.0)}
    several = UDNClassifier(**short, n_members=2).fit(X, y)
    probs, depths = several.predict_proba(X, exit=0.8)
    alone = []
    for member in several.members_:
        one = copy.copy(several)
        one.members_, one.model_ = [member], member
        alone.append(one.predict_proba(X, exit=0.8))
    np.testing.assert_allclose(probs, (alone[0][0] + alone[1][0]) / 2, atol=1e-12)
    assert (depths == np.maximum(alone[0][1], alone[1][1])).all()
    assert len(set(depths)) > 1


def test_estimators_that_cannot():
    X, y = make_classification(60, 5, random_state=0)
    number = UDNRegressor(epochs=1, width=4, random_state=0).fit(X, y * 1.0)
    with pytest.raises(TypeError):
        number.predict(X, exit=0.9)
