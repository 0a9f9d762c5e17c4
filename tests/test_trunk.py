"""Members that share a network: `TrunkDense`, `Members`, and estimators with them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import unbounded as ub
from unbounded import growth, testing
from unbounded.cli import main
from unbounded.estimators.files import load
from unbounded.layers.trunk import MemberHead, MemberLinear
from unbounded.likelihoods import InputNoise
from unbounded.predictive import combine
from unbounded.steps.batches import batches
from unbounded.steps.scoring import SetScores
from unbounded.training import make_optimizer, step

ROWS, COLUMNS, WIDTH = 24, 3, 8


def rows(seed=0, count=ROWS):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, COLUMNS, generator=generator, dtype=torch.float64)
    return x, (x[:, :1] * x[:, 1:2]).sin()


def trunk(members, likelihood=None, seed=1, depth=None, **options):
    each = ub.Gaussian() if likelihood is None else likelihood
    layers = ub.TrunkDense(COLUMNS, WIDTH, each.num_outputs(1), members=members, **options)
    depth = ub.FiniteDepth(3) if depth is None else depth
    prior = ub.UniformDepth(3) if isinstance(depth, ub.FiniteDepth) else None
    return ub.UDN(layers, ub.Members(each, members), depth, prior, seed=seed).double()


def scatter(model, seed=5):
    """Give all parameters of the network values of their own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)


def lone(model, member):
    """A `TableDense` network that does what one member does."""
    layers = ub.TableDense(COLUMNS, WIDTH, model.layers.out_features, activation="silu")
    found = ub.UDN(layers, ub.Gaussian(), ub.FiniteDepth(3), ub.UniformDepth(3)).double()
    found.depth.load_state_dict(model.depth.state_dict())
    found.likelihood.load_state_dict(model.likelihood.each.state_dict())
    for depth in ("1", "2", "3"):
        theirs, own = model.network.hidden[depth], found.network.hidden[depth]
        linear = own.linear if depth == "1" else own
        if depth == "1":
            own.waves.load_state_dict(theirs.waves.state_dict())
        shared = theirs.linear
        factors = (1 + shared.after[member, 0])[:, None] * (1 + shared.before[member, 0])
        head = model.network.heads[depth]
        with torch.no_grad():
            linear.weight.copy_(shared.weight * factors)
            linear.bias.copy_(shared.bias[member, 0])
            found.network.heads[depth].weight.copy_(head.weight[member].t())
            found.network.heads[depth].bias.copy_(head.bias[member, 0])
    return found


def test_one_member_is_the_lone_network_in_loss_and_gradient():
    x, y = rows()
    one = trunk(1)
    layers = ub.TableDense(COLUMNS, WIDTH, 1, activation="silu")
    other = ub.UDN(layers, ub.Gaussian(), ub.FiniteDepth(3), ub.UniformDepth(3), seed=1).double()
    for depth in ("1", "2", "3"):  # heads begin at zero: let them say something
        weights = torch.randn(WIDTH, 1, generator=torch.Generator().manual_seed(int(depth)))
        with torch.no_grad():
            one.network.heads[depth].weight.copy_(weights[None])
            other.network.heads[depth].weight.copy_(weights.t())
    torch.testing.assert_close(one(x)[:, :, 0], other(x))
    losses = [model.elbo(x, y, 100).loss(100) for model in (one, other)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for depth in ("1", "2", "3"):
        shared, plain = one.network.hidden[depth].linear, other.network.hidden[depth]
        plain = plain.linear if depth == "1" else plain
        torch.testing.assert_close(shared.weight.grad, plain.weight.grad)
        torch.testing.assert_close(shared.bias.grad[0, 0], plain.bias.grad)
        heads = [model.network.heads[depth].weight.grad for model in (one, other)]
        torch.testing.assert_close(heads[0][0], heads[1].t())
    first = [model.network.hidden["1"].waves.frequency.grad for model in (one, other)]
    torch.testing.assert_close(*first)


def test_members_folded_are_members_one_by_one():
    x, y = rows()
    model = trunk(4)
    scatter(model)
    alone = [lone(model, member) for member in range(4)]
    outputs = model(x)
    assert outputs.shape == (3, ROWS, 4, 1)
    for member, other in enumerate(alone):
        torch.testing.assert_close(outputs[:, :, member], other(x))
    each = [other.likelihood.log_lik(other(x), y) for other in alone]
    torch.testing.assert_close(model.likelihood.log_lik(outputs, y), torch.stack(each).mean(0))
    together = combine([other.predict(x) for other in alone])
    found = model.predict(x)
    torch.testing.assert_close(found.mean, together.mean)
    torch.testing.assert_close(found.variance, together.variance)
    torch.testing.assert_close(found.log_prob(y), together.log_prob(y))
    torch.testing.assert_close(found.quantile([0.1, 0.9]), together.quantile([0.1, 0.9]))
    mixture = torch.stack(each).logsumexp(0) - math.log(4)
    torch.testing.assert_close(model.likelihood.log_scores(outputs, y), mixture)


def test_depths_are_judged_by_the_mixture_of_members():
    x, y = rows()
    model = trunk(4)
    scatter(model)
    scores = SetScores({"val": batches((x, y), model, what="validation", batch_size=ROWS)})
    found = scores(model, keep="val")
    torch.testing.assert_close(scores.by_depth, model.likelihood.log_scores(model(x), y))
    rmse = (model.predict(x).mean - y).square().mean().sqrt()
    assert found["val_rmse"] == pytest.approx(float(rmse))


def test_a_birth_is_harmless():
    x, y = rows()
    model = trunk(4, depth=ub.TruncatedNormal(2.0, 1.0))
    optimizer = make_optimizer(model, lr=0.01)
    for _ in range(3):
        step(model, optimizer, x, y, ROWS)
    before, last = model(x), model.network.num_layers
    growth.resize(model, last + 2)
    torch.testing.assert_close(model(x, (1, last)), before[:last], rtol=0, atol=0)
    new = model(x, (last + 1, last + 2))
    assert bool((new == 0).all())  # a new head says nothing at first
    head = model.network.heads[str(last)]
    assert bool(torch.isfinite(head(model.network.states(x, last + 2)[-1])).all())


def test_first_members_differ_and_births_go_by_seed_and_depth():
    first, again = trunk(4), trunk(4)
    signs = 1 + first.network.hidden["1"].linear.before
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert len({tuple(own.flatten().tolist()) for own in signs}) == 4
    torch.testing.assert_close(again.state_dict(), first.state_dict())
    assert bool((first.network.hidden["2"].linear.before == 0).all())


def test_contract():
    testing.check_layers(
        lambda: ub.TrunkDense(2, 6, 2, members=3, embedded=[1]),
        torch.randn(24, 2, generator=torch.Generator().manual_seed(0)),
        likelihood=lambda: ub.Members(ub.Categorical(2), 3),
        y=torch.arange(24) % 2,
    )


def test_files_and_frozen_models_carry_members(tmp_path):
    x, _ = rows()
    for each, size in ((ub.Gaussian(), 1), (ub.Categorical(3), 3), (ub.Bernoulli(), 1)):
        layers = ub.TrunkDense(COLUMNS, WIDTH, size, members=3)
        model = ub.UDN(layers, ub.Members(each, 3)).double()
        scatter(model)
        ub.save(model, tmp_path / "model.udn")
        loaded = ub.load(tmp_path / "model.udn")
        assert loaded.likelihood.count == 3
        assert type(loaded.likelihood.single) is type(each)
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
        outputs, probs = model.freeze()(x)
        torch.testing.assert_close(outputs, model(x))
        assert probs.shape == outputs.shape[:1]


def test_errors_are_told_in_a_line():
    with pytest.raises(ValueError, match="count must be an integer from 1"):
        ub.Members(ub.Gaussian(), 0)
    with pytest.raises(ValueError, match="one member, got Members"):
        ub.Members(ub.Members(ub.Gaussian(), 2), 2)
    model = ub.UDN(ub.TrunkDense(2, 4, 1, members=3), ub.Members(ub.Gaussian(), 2))
    with pytest.raises(ValueError, match=r"2 members a row.*members=2"):
        model.predict(torch.zeros(5, 2))
    X, y = rows()
    with pytest.raises(ValueError, match="ensemble must be one of"):
        ub.UDNRegressor(ensemble="wide").fit(X, y.ravel())
    with pytest.raises(ValueError, match="at most 1024 can share a network"):
        ub.UDNRegressor(ensemble="shared", n_members=2000).fit(X, y.ravel())
    with pytest.raises(ValueError, match="ensemble='shared' has layers of its own"):
        ub.UDNRegressor(ensemble="shared", preset="paper").fit(X, y.ravel())


OPTIONS = {"ensemble": "shared", "n_members": 4, "width": 16, "epochs": 6, "random_state": 0}
OPTIONS |= {"device": "cpu"}


def table(classes):
    X, y = rows(3, 160)
    y = y.ravel().numpy()
    return X.numpy(), np.where(y > 0, "up", "down") if classes else 10 * y + 3


def test_a_regressor_with_a_shared_network(tmp_path):
    X, y = table(classes=False)
    model = ub.UDNRegressor(**OPTIONS).fit(X, y)
    assert len(model.members_) == 1
    assert model.model_.likelihood.count == 4
    mean, std = model.predict(X, return_std=True)
    each, spread = model.predict_by_depth(X, return_std=True)
    q = model.depth_probs_[:, None]
    np.testing.assert_allclose((q * each).sum(0), mean, atol=1e-6)
    variance = (q * (spread**2 + each**2)).sum(0) - mean**2
    np.testing.assert_allclose(np.sqrt(variance), std, rtol=1e-5)
    low, high = model.predict_interval(X, 0.8)
    assert (low < high).all()
    assert model.predict_quantiles(X, [0.1, 0.9]).shape == (2, 160)
    model.save(tmp_path / "model.udn")
    again = load(tmp_path / "model.udn", device="cpu")
    assert (again.ensemble, again.n_members) == ("shared", 4)
    np.testing.assert_allclose(again.predict(X), mean)
    np.testing.assert_allclose(again.predict_interval(X, 0.8)[0], low)
    before = model.model_.network.heads["1"].weight.clone()
    model.partial_fit(X[:40], y[:40])
    assert not torch.equal(before, model.model_.network.heads["1"].weight)
    again.set_params(warm_start=True, n_members=3)
    with pytest.raises(ValueError, match="trains 4 members on, n_members is 3"):
        again.fit(X, y)


def test_a_classifier_with_a_shared_network(tmp_path):
    X, y = table(classes=True)
    model = ub.UDNClassifier(**OPTIONS).fit(X, y)
    probs = model.predict_proba(X)
    by_depth = model.predict_by_depth(X)
    np.testing.assert_allclose(np.tensordot(model.depth_probs_, by_depth, 1), probs, atol=1e-6)
    model.save(tmp_path / "model.udn")
    np.testing.assert_allclose(load(tmp_path / "model.udn", device="cpu").predict_proba(X), probs)


def test_calibration_reaches_all_members():
    X, y = table(classes=True)
    plain, cooled = (ub.UDNClassifier(**OPTIONS, calibrate=on).fit(X, y) for on in (False, True))
    one, other = (m.model_.network.heads["1"].weight.detach() for m in (plain, cooled))
    ratio = (one / other)[one.abs() > 1e-6]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=1e-3)
    assert abs(float(ratio[0]) - 1) > 1e-6


def test_a_given_likelihood_is_that_of_one_member(tmp_path):
    X, y = table(classes=False)
    likelihood = ub.Gaussian(InputNoise())
    model = ub.UDNRegressor(**OPTIONS, likelihood=likelihood).fit(X, y)
    assert model.model_.layers.out_features == 2
    model.save(tmp_path / "model.udn")
    again = load(tmp_path / "model.udn", device="cpu")
    assert type(again.likelihood) is ub.Gaussian
    np.testing.assert_allclose(again.predict(X), model.predict(X))


def test_the_command_line_takes_a_shared_network(tmp_path, capsys):
    X, y = table(classes=False)
    path, out = tmp_path / "table.csv", tmp_path / "model.udn"
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="")
    words = ["fit", path, "--target", "y", "--out", out, "--ensemble", "shared", "--members"]
    short = ["--epochs", "2", "--width", "8", "--no-references", "--no-report", "--device", "cpu"]
    assert main([str(word) for word in [*words, 3, *short]]) == 0
    assert load(out, device="cpu").model_.likelihood.count == 3
    assert main([str(word) for word in [*words, 3, "--preset", "paper"]]) == 2
    assert main([str(word) for word in [*words, 5000]]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "leave --preset at tables" in told[0]
    assert "at most 1024 can share a network, got 5000" in told[1]


def test_the_parts_of_a_member():
    linear = MemberLinear(3, 5, 2, lambda one: nn.init.ones_(one.weight))
    assert linear(torch.ones(4, 3)).shape == (2, 4, 5)
    assert MemberHead(5, 1, 2)(torch.ones(2, 4, 5)).shape == (4, 2, 1)
