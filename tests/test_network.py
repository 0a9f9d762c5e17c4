"""Layers and the network: shapes, errors, initialisation, cost, gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedPoisson
from unbounded.layers.dense_passes import Norm, normalise
from unbounded.network import LayerError


def interleaved(depth):
    """Layers of different types and shapes: convolution, flattening, dense, dense of new width."""
    if depth == 1:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    if depth == 2:
        return nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 10), nn.Tanh())
    return nn.Sequential(nn.Linear(10 if depth == 3 else 5 + depth, 6 + depth), nn.ReLU())


def interleaved_head(depth):
    if depth == 1:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return nn.Linear(10 if depth == 2 else 6 + depth, 3)


def test_interleaved_shapes_and_types():
    model = ub.UDN(
        ub.CustomLayers(interleaved, interleaved_head), ub.Categorical(3), TruncatedPoisson(3.0)
    )
    x = torch.randn(5, 1, 6, 6)
    outputs = model(x)
    assert outputs.shape == (model.depth.max_depth(), 5, 3)
    hidden = x
    for ell, expected in enumerate(outputs, start=1):
        hidden = model.network.hidden[str(ell)](hidden)
        torch.testing.assert_close(model.network.heads[str(ell)](hidden), expected)
    result = ub.fit(model, x.repeat(4, 1, 1, 1), torch.arange(20) % 3, epochs=2, batch_size=10)
    assert len(result.history) == 2


@pytest.mark.parametrize("make", [ub.Dense, ub.ResidualDense])
@pytest.mark.parametrize("shares_head", [False, True])
def test_outputs_are_the_modules_one_after_another(make, shares_head):
    model = ub.UDN(
        make(3, 6, 2, shares_head=shares_head), ub.Categorical(2), TruncatedPoisson(2.0)
    ).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    outputs, hidden = model(x), x
    for ell in range(1, model.depth.max_depth() + 1):
        hidden = model.network.hidden[str(ell)](hidden)
        head = model.network.heads["1" if shares_head else str(ell)]
        torch.testing.assert_close(outputs[ell - 1], head(hidden))
    assert len(model.network.heads) == (1 if shares_head else model.depth.max_depth())


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("shares_head", [False, True])
def test_a_pass_has_the_right_gradients(first, shares_head):
    """Against finite differences, in the input and in every parameter of the depths asked for."""
    layers = ub.Dense(2, 3, 2, activation="tanh", shares_head=shares_head)
    network = ub.UDN(layers, ub.Categorical(2), FiniteDepth(4)).double().network
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    named = {n: p for n, p in network.named_parameters() if shares_head or not _below(n, first)}
    assert len(network.active(4, first).parameters) == len(named)

    def run(x, *values):
        parameters = dict(zip(named, values, strict=True))
        return torch.func.functional_call(network, parameters, (x, 4, first))

    assert torch.autograd.gradcheck(run, (x, *named.values()))


def _below(name, first):
    role, depth, *_ = name.split(".")
    return role == "heads" and int(depth) < first


def test_hooks_and_frozen_layers_are_respected():
    """A hook is called, a layer that is not trained has no gradient; the outputs stay the same."""
    x, _ = classes(4)
    model = classifier(TruncatedPoisson(2.0))
    expected = model(x)
    calls = []
    model.network.hidden["2"].register_forward_hook(lambda *_: calls.append("layer"))
    handle = model.network.heads["3"].register_forward_hook(lambda *_: calls.append("head"))
    torch.testing.assert_close(model(x), expected)
    assert calls == ["layer", "head"]
    handle.remove()
    torch.testing.assert_close(model(x), expected)
    assert calls == ["layer", "head", "layer"]
    model.network.hidden["1"].requires_grad_(False)
    ub.step(model.train(), ub.make_optimizer(model), *classes(4), num_data=4)
    assert model.network.hidden["1"].weight.grad is None
    assert model.network.hidden["3"].weight.grad is not None


def test_each_layer_runs_once():
    """Cost is linear in m(q): one call a layer and one a head for all depths together."""
    calls = []

    def counted(module):
        module.register_forward_hook(lambda *_: calls.append(1))
        return module

    layers = ub.CustomLayers(
        lambda depth: counted(nn.Linear(3 if depth == 1 else 4, 4)),
        lambda depth: counted(nn.Linear(4, 2)),
    )
    model = ub.UDN(layers, ub.Categorical(2), TruncatedPoisson(5.0))
    model(torch.randn(2, 3))
    assert len(calls) == 2 * model.depth.max_depth() == 20


def test_a_layer_that_does_not_fit_names_depth_and_shapes():
    layers = ub.CustomLayers(
        lambda depth: nn.Linear(4 if depth != 3 else 5, 4), lambda depth: nn.Linear(4, 2)
    )
    with pytest.raises(
        LayerError, match=r"layer 3 could not take what layer 2 gives, shape \(6, 4\)"
    ):
        ub.UDN(layers, ub.Categorical(2))(torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"layer 1 could not take what the input gives"):
        classifier()(torch.zeros(6, 4))
    heads = ub.CustomLayers(
        lambda depth: nn.Linear(4, 4), lambda depth: nn.Linear(4 if depth < 2 else 3, 2)
    )
    with pytest.raises(
        LayerError, match=r"head 2 could not take what layer 2 gives, shape \(6, 4\)"
    ):
        ub.UDN(heads, ub.Categorical(2))(torch.zeros(6, 4))
    uneven = ub.CustomLayers(
        lambda depth: nn.Linear(4, 4), lambda depth: nn.Linear(4, 2 if depth < 3 else 3)
    )
    with pytest.raises(LayerError, match=r"head 3 gives \(6, 3\), head 1 gives \(6, 2\)"):
        ub.UDN(uneven, ub.Categorical(2))(torch.zeros(6, 4))


def test_not_a_module_and_lazy_modules():
    with pytest.raises(TypeError, match="hidden of depth 1, got str"):
        ub.UDN(ub.CustomLayers(lambda d: "x", lambda d: nn.Linear(1, 1)), ub.Bernoulli())
    with pytest.raises(ValueError, match="lazy"):
        ub.UDN(
            ub.CustomLayers(lambda d: nn.LazyLinear(3), lambda d: nn.Linear(3, 1)), ub.Bernoulli()
        )


def test_initialisations():
    default = ub.UDN(ub.Dense(50, 400, 2), ub.Categorical(2), FixedDepth(2))
    bound = 1 / 400**0.5
    weight = default.network.hidden["2"].weight
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    he = ub.UDN(ub.Dense(50, 400, 2, init="he"), ub.Categorical(2), FixedDepth(2))
    assert he.network.hidden["2"].weight.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert (he.network.hidden["2"].bias == 0).all()
    own = ub.Dense(2, 3, 2, init=lambda linear: nn.init.constant_(linear.weight, 0.5))
    assert (ub.UDN(own, ub.Categorical(2)).network.hidden["1"].weight == 0.5).all()


def test_residual_blocks_start_as_the_identity():
    model = ub.UDN(ub.ResidualDense(3, 6, 2), ub.Categorical(2), TruncatedPoisson(3.0))
    states = model.network.states(torch.randn(4, 3), model.depth.max_depth())
    assert all(torch.equal(states[0], other) for other in states[1:])
    other = ub.UDN(
        ub.ResidualDense(3, 6, 2, identity=False), ub.Categorical(2), TruncatedPoisson(3.0)
    )
    states = other.network.states(torch.randn(4, 3), 2)
    assert not torch.equal(states[0], states[1])


def test_first_weights_depend_on_seed_and_depth_alone():
    """The same layer whether it is born at once, later, or after other draws from torch."""
    deep = classifier(TruncatedPoisson(6.0), seed=3)
    shallow = classifier(TruncatedPoisson(1.0), seed=3)
    torch.manual_seed(99)
    torch.randn(1000)
    shallow.depth.raw_rate.data.fill_(6.0)
    from unbounded import growth

    growth.grow(shallow)
    names = [n for n in shallow.state_dict() if n.startswith("network")]
    assert len(names) == 4 * deep.network.num_layers
    assert all(torch.equal(shallow.state_dict()[n], deep.state_dict()[n]) for n in names)
    assert not torch.equal(deep.network.hidden["2"].weight, deep.network.hidden["3"].weight)
    other = classifier(TruncatedPoisson(6.0), seed=4)
    assert not torch.equal(deep.network.hidden["2"].weight, other.network.hidden["2"].weight)


def test_building_a_model_leaves_torch_s_generator_alone():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    classifier(TruncatedPoisson(4.0))
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_sizes(size):
    with pytest.raises(ValueError, match="width must be an integer of at least 1"):
        ub.Dense(2, size, 2)


def test_bad_names():
    with pytest.raises(ValueError, match="init must be a callable or one of"):
        ub.Dense(2, 2, 2, init="xavier")
    with pytest.raises(ValueError, match="activation must be a callable or one of"):
        ub.Dense(2, 2, 2, activation="swish")


def test_predicting_leaves_the_network_unchanged():
    """Not even if q reaches beyond the layers that are born."""
    x, y = classes(10)
    model = classifier(TruncatedPoisson(1.0)).train()
    model.depth.raw_rate.data.fill_(8.0)
    before, count = state(model), model.network.num_layers
    assert model.depth.max_depth() > count
    prediction = model.predict(x)
    model(x)
    model.elbo(x, y, 10)
    str(model)
    model.freeze()
    assert model.network.num_layers == count
    assert same(before, state(model))
    assert model.training
    assert prediction.outputs.shape[0] == count
    assert prediction.depth_log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_pre_norm_layers_add_to_a_normalised_state():
    layers = ub.PreNormDense(3, 5, 2, activation="tanh")
    model = ub.UDN(layers, ub.Categorical(2), ub.FixedDepth(3), seed=2)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    h = torch.tanh(F.linear(x, *weights(model, 1)))
    for depth in (2, 3):
        var, mean = torch.var_mean(h, 1, correction=0, keepdim=True)
        normed = (h - mean) / (var + 1e-5).sqrt()
        h = h + torch.tanh(F.linear(normed, *weights(model, depth)))
    head = model.network.heads["3"]
    torch.testing.assert_close(model(x)[-1], F.linear(h, head.weight, head.bias))


def test_both_ways_to_a_norm_agree():
    """Torch's own, which a GPU takes, and the one for a CPU; also where a state has no spread."""
    before = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)) * 100 + 1000
    before[0, 0] = 7.0
    sizes = (8, 1, 1, 8)
    ours, theirs = (Norm(*(torch.empty(3, 5, size) for size in sizes)) for _ in range(2))
    normalise(before, ours)
    normalise(before, theirs, in_one=True)
    exact = F.layer_norm(before.double(), (8,)).float()
    for found in (ours, theirs):
        torch.testing.assert_close(found.normed, exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[:3], theirs[:3], rtol=1e-4, atol=1e-5)


def weights(model, depth):
    layer = model.network.hidden[str(depth)]
    return layer.weight, layer.bias
