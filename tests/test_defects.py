"""What went wrong once, so that it does not go wrong again."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils._python_dispatch import TorchDispatchMode

import unbounded as ub
from helpers import classes, classifier, numbers, same, state
from unbounded.depth import DepthFamily
from unbounded.likelihoods import InputNoise, Likelihood
from unbounded.priors import DepthPrior

MATHS = Path(__file__).parents[1] / "docs" / "maths.md"


def quadratic(*parameters):
    """KL of these tensors under a standard Gaussian."""
    return sum(float(p.detach().double().square().sum()) for p in parameters) / 2


def step_of(model, optimizer=None, rows=16, **options):
    """One step of a model on some rows, by plain SGD unless an optimiser is given."""
    if optimizer is None:
        optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1)
    return ub.step(model.train(), optimizer, *classes(rows), num_data=rows, **options)


def raise_rate(model, rate):
    """λ is `rate` now: layers are missing until the next step."""
    model.depth.raw_rate.data.fill_(rate + math.log(-math.expm1(-rate)))


# A pass remembers nothing that can go stale ------------------------------------------------------


def test_hooks_that_are_registered_after_a_pass_are_called():
    x, _ = classes(8)
    model = classifier(ub.TruncatedPoisson(2.0))
    expected = model(x)
    called = []
    for role in ("hidden", "heads"):
        module = getattr(model.network, role)["2"]
        module.register_forward_hook(lambda *_, role=role: called.append(role))
    torch.testing.assert_close(model(x), expected)
    assert called == ["hidden", "heads"]
    step_of(model)
    assert called == ["hidden", "heads"] * 2
    doubled = model.network.heads["3"].register_forward_hook(lambda _, __, output: 2 * output)
    torch.testing.assert_close(model(x)[2], 2 * model.network.heads["3"].forward(hidden(model, x)))
    doubled.remove()
    inner = model.network.hidden["2"].register_full_backward_hook(lambda *_: called.append("back"))
    step_of(model)
    assert called[-1] == "back"
    inner.remove()


def hidden(model, x, depth=3):
    """h_ℓ, module by module."""
    for ell in range(1, depth + 1):
        x = model.network.hidden[str(ell)].forward(x)
    return x


def test_a_layer_that_is_frozen_between_steps_does_not_move():
    model = classifier(ub.TruncatedPoisson(2.0))
    optimizer = ub.make_optimizer(model, lr=0.05)
    step_of(model, optimizer)
    frozen = [model.network.hidden["2"], model.network.heads["1"]]
    for module in frozen:
        module.requires_grad_(False)
    before = [state(module) for module in frozen]
    third = state(model.network.hidden["3"])
    kl = float(step_of(model, optimizer).terms.weight_kl)
    step_of(model, optimizer)
    assert all(same(old, state(module)) for old, module in zip(before, frozen, strict=True))
    assert not same(third, state(model.network.hidden["3"]))
    for module in frozen:  # and it has no KL: it is not inferred
        module.requires_grad_(True)
    assert kl > 0
    step_of(model, optimizer)
    assert not any(same(old, state(m)) for old, m in zip(before, frozen, strict=True))


def test_a_replaced_parameter_is_used():
    x, _ = classes(8)
    model = classifier(ub.TruncatedPoisson(2.0))
    model(x)
    step_of(model)
    layer, head = model.network.hidden["2"], model.network.heads["2"]
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight))
    layer.bias = nn.Parameter(torch.ones_like(layer.bias))
    head.weight = nn.Parameter(torch.full_like(head.weight, 0.5))
    outputs = model(x)
    torch.testing.assert_close(outputs[1], 0.5 * 8 + head.bias.expand(8, 2))
    step_of(model)
    assert layer.weight.grad is not None
    assert head.weight.grad is not None
    assert (head.weight != 0.5).any()


def test_a_parametrisation_is_used():
    x, _ = classes(8)
    model = classifier(ub.TruncatedPoisson(2.0))
    expected = model(x)
    for module in (model.network.hidden["2"], model.network.heads["3"]):
        nn.utils.parametrizations.weight_norm(module)
    torch.testing.assert_close(model(x), expected)
    scale = model.network.heads["3"].parametrizations.weight.original0
    scale.data *= 2
    assert not torch.allclose(model(x)[2], expected[2])
    torch.testing.assert_close(model(x)[:2], expected[:2])
    before = scale.detach().clone()
    step_of(model)
    assert not torch.equal(before, scale)


# One module at several depths --------------------------------------------------------------------


def tied(depth=None, seed=0):
    """Every layer from depth 2 on is the same module, every head too."""
    first, later, head = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)
    layers = ub.CustomLayers(lambda d: first if d == 1 else later, lambda d: head)
    depth = ub.TruncatedPoisson(2.0) if depth is None else depth
    return ub.UDN(layers, ub.Categorical(2), depth, seed=seed)


def test_a_module_at_several_depths_is_in_the_optimiser_once():
    model = tied(ub.TruncatedPoisson(0.01))
    assert model.network.num_layers == 1
    optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1)
    for rate in (2.0, 6.0):  # the first birth brings several depths of the same module
        raise_rate(model, rate)
        step_of(model, optimizer)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert len(held) == len({id(p) for p in held}) == len(list(model.parameters())) == 7
    assert model.network.num_layers > 6
    before = model.network.num_layers
    raise_rate(model, 0.01)
    step_of(model, optimizer, drop_inactive=True)
    assert model.network.num_layers == 1 < before
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("closed_form", [True, False])
def test_a_step_of_tied_layers_is_the_gradient_times_the_rate(closed_form):
    model = tied().double()
    if not closed_form:
        model.weight_prior.precision = None
    x, y = classes(16)
    wanted = {n: p.detach().clone() for n, p in model.named_parameters()}
    terms = model.elbo(x.double(), y, 16)
    grads = torch.autograd.grad(terms.loss(16), list(model.parameters()))
    optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1, depth_lr_ratio=1.0)
    info = ub.step(model.train(), optimizer, x.double(), y, 16)
    torch.testing.assert_close(info.terms.elbo, terms.elbo.detach())
    for (name, parameter), grad in zip(model.named_parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted[name] - 0.1 * grad)


def test_the_kl_of_tied_layers_counts_once():
    model = tied().double()
    x, y = classes(16)
    q = model.depth.log_probs().detach().double().exp()
    network = model.network
    # The first layer serves every depth, the tied ones the depths from 2 on, the head all of them.
    by_hand = (
        quadratic(*network.hidden["1"].parameters())
        + float(q[1:].sum()) * quadratic(*network.hidden["2"].parameters())
        + quadratic(*network.heads["1"].parameters())
    )
    assert model.elbo(x.double(), y, 16).weight_kl.item() == pytest.approx(by_hand, rel=1e-6)
    plain = classifier(ub.TruncatedPoisson(2.0)).double()  # where nothing is tied, all count
    by_hand = sum(
        float(q[depth - 1 :].sum()) * quadratic(*plain.network.hidden[str(depth)].parameters())
        + float(q[depth - 1]) * quadratic(*plain.network.heads[str(depth)].parameters())
        for depth in range(1, len(q) + 1)
    )
    assert plain.elbo(x.double(), y, 16).weight_kl.item() == pytest.approx(by_hand, rel=1e-6)


# Half precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lambda_stays_in_single_precision_and_moves(dtype):
    for family in (ub.TruncatedPoisson(5.0), ub.TruncatedConwayMaxwell(5.0), ub.FiniteDepth(4)):
        model = classifier(family)
        model.bfloat16() if dtype == torch.bfloat16 else model.half()
        assert all(p.dtype == torch.float32 for p in family.parameters())
        assert model.network.hidden["1"].weight.dtype == dtype
        before = [p.detach().clone() for p in family.parameters()]
        x, y = classes(32)
        optimizer = ub.make_optimizer(model, lr=0.001, depth_lr_ratio=0.1)  # too little for 8 bits
        ub.step(model.train(), optimizer, x.to(dtype), y, 32)
        assert all(
            bool((p != old).all()) for p, old in zip(family.parameters(), before, strict=True)
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["classes", "numbers", "input noise"])
def test_training_runs_in_bfloat16(kind, weighted):
    if kind == "classes":
        (x, y), outputs, likelihood = classes(64), 2, ub.Categorical(2)
    else:
        (x, y), outputs, likelihood = numbers(64), 1, ub.Gaussian()
        if kind == "input noise":
            outputs, likelihood = 2, ub.Gaussian(InputNoise())
    model = ub.UDN(ub.Dense(3, 8, outputs), likelihood).bfloat16()
    result = ub.fit(
        model,
        x,
        y,
        weights=torch.linspace(0.5, 1.5, 64) if weighted else None,
        validation=(x, y),
        epochs=4,
        batch_size=16,
        lr=0.01,
        progress=False,
    )
    assert all(math.isfinite(value) for row in result.history for value in row.values())
    assert result.history["elbo"][-1] > result.history["elbo"][0]
    prediction = model.predict(x)
    assert torch.isfinite(prediction.outputs).all()
    assert prediction.depth_log_probs.dtype == torch.float32
    assert model.depth.raw_rate.dtype == torch.float32
    assert model.network.hidden["1"].weight.dtype == torch.bfloat16


# States, averages, compiled models, wrapped optimisers -------------------------------------------


@pytest.mark.parametrize("rates", [(6.0, 1.0), (1.0, 6.0)])
def test_a_state_goes_into_a_model_of_another_depth(rates):
    x, _ = classes(8)
    source, target = (classifier(ub.TruncatedPoisson(r), seed=s) for s, r in enumerate(rates))
    assert source.network.num_layers != target.network.num_layers
    target.load_state_dict(source.state_dict())
    assert same(state(source), state(target))
    assert torch.equal(source(x), target(x))
    step_of(target)


def test_a_state_goes_into_a_model_inside_of_a_module():
    class Holder(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.before = nn.Linear(3, 3)
            self.models = nn.ModuleList([classifier(), classifier(ub.TruncatedPoisson(rate))])

    for rates in ((7.0, 1.0), (1.0, 7.0)):
        source, target = Holder(rates[0]), Holder(rates[1])
        raise_rate(source.models[0], 3.0)
        ub.growth.grow(source.models[0])
        target.load_state_dict(source.state_dict())
        assert same(state(source), state(target))
    broken = source.state_dict()
    del broken["models.1.network.hidden.1.weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        target.load_state_dict(broken)


def grown_in_three_steps(average):
    """A model that is averaged after each of five steps, with births before two of them."""
    model = classifier(ub.TruncatedPoisson(0.5))
    optimizer = ub.make_optimizer(model, lr=0.05, depth_lr_ratio=0.0)
    seen = []
    for rate in (0.5, 0.5, 3.0, 3.0, 6.0):
        raise_rate(model, rate)
        step_of(model, optimizer)
        average(model)
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert len(seen[0]) < len(seen[2]) < len(seen[4])
    return model, seen


def test_our_averaged_model_averages_by_name_over_births():
    from unbounded.training import AveragedModel

    averaged = AveragedModel(classifier(ub.TruncatedPoisson(0.5)))
    model, seen = grown_in_three_steps(averaged.update_parameters)
    found = dict(averaged.module.named_parameters())
    assert found.keys() == dict(model.named_parameters()).keys()
    by_hand = {}
    for count, values in enumerate(seen):
        for name, value in values.items():
            # The mean over all steps; who is born later starts from the first value that was seen.
            old = by_hand.get(name, value)
            by_hand[name] = old + (value - old) / (count + 1)
    for name, value in by_hand.items():
        torch.testing.assert_close(found[name].detach(), value)
    x, _ = classes(4)
    assert averaged(x).shape == (averaged.module.depth.max_depth(), 4, 2)
    smooth = AveragedModel(
        classifier(ub.TruncatedPoisson(0.5)), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.7)
    )
    _, seen = grown_in_three_steps(smooth.update_parameters)
    by_hand = {}
    for values in seen:
        for name, value in values.items():
            by_hand[name] = 0.7 * by_hand[name] + 0.3 * value if name in by_hand else value
    for name, parameter in smooth.module.named_parameters():
        torch.testing.assert_close(parameter.detach(), by_hand[name])


def test_torch_s_averaged_model_does_not_mix_layers_and_heads():
    """It pairs parameters by position: those born later must come later, all of one size here."""
    layers = ub.CustomLayers(lambda d: nn.Linear(3, 3), lambda d: nn.Linear(3, 3))
    model = ub.UDN(layers, ub.Categorical(3), ub.TruncatedPoisson(0.5))
    averaged = swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    names = [name for name, _ in model.named_parameters()]
    raise_rate(model, 3.0)
    ub.growth.grow(model)
    assert [name for name, _ in model.named_parameters()][: len(names)] == names
    averaged.update_parameters(model)
    own = dict(model.named_parameters())
    for name, parameter in averaged.module.named_parameters():
        if name.startswith("network."):
            assert torch.equal(parameter, own[name]), name


def counting(calls):
    """A backend of `torch.compile` that counts how often its code is run."""

    def backend(graph, inputs):
        def run(*arguments):
            calls.append(1)
            return graph(*arguments)

        return run

    return backend


@pytest.mark.usefixtures("compiler")
def test_a_step_of_a_compiled_model_runs_the_compiled_code():
    calls = []
    plain, model = classifier(ub.TruncatedPoisson(2.0)), classifier(ub.TruncatedPoisson(2.0))
    optimizers = [ub.make_optimizer(m, torch.optim.SGD, lr=0.1) for m in (plain, model)]
    compiled = torch.compile(model, backend=counting(calls))
    for rate in (2.0, 2.0, 5.0):
        calls.clear()
        for each in (plain, model):
            raise_rate(each, rate)
        info = step_of(compiled, optimizers[1])
        assert calls
        assert info.loss == pytest.approx(step_of(plain, optimizers[0]).loss, rel=1e-5)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("compiler")
def test_fit_takes_a_compiled_model():
    calls = []
    plain, model = classifier(), classifier()
    x, y = classes(32)
    options = {"epochs": 2, "batch_size": 16, "progress": False, "validation": (x, y)}
    result = ub.fit(torch.compile(model, backend=counting(calls)), x, y, **options)
    assert len(calls) >= 4
    expected = ub.fit(plain, x, y, **options)
    assert result.history["elbo"] == pytest.approx(expected.history["elbo"], rel=1e-5)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class LikeLightning:
    """Holds an optimiser and passes everything on; its constructor takes other arguments."""

    def __init__(self, optimizer, strategy, *, toggles):
        self._optimizer, self.strategy, self.toggles = optimizer, strategy, toggles

    @property
    def optimizer(self):
        return self._optimizer

    def __getattr__(self, name):
        return getattr(self.__dict__["_optimizer"], name)


class LikeAccelerate(torch.optim.Optimizer):
    """An `Optimizer` by name that never calls the constructor of its base."""

    def __init__(self, optimizer, device_placement=True, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler
        self.device_placement = device_placement

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize(
    "wrap",
    [lambda o: LikeLightning(o, "one", toggles=True), LikeAccelerate],
    ids=["Lightning", "Accelerate"],
)
def test_a_wrapped_optimiser_survives_births(wrap, kind):
    results = []
    for wraps in (False, True):
        model = classifier(ub.TruncatedPoisson(1.0))
        inner = ub.make_optimizer(model, kind, lr=0.05)
        optimizer = wrap(inner) if wraps else inner
        step_of(model, optimizer)
        for rate in (4.0, 0.5, 6.0):
            raise_rate(model, rate)
            step_of(model, optimizer, drop_inactive=True)
            step_of(model, optimizer, drop_inactive=True)
        held = {id(p) for group in inner.param_groups for p in group["params"]}
        assert held == {id(p) for p in model.parameters()}
        assert {id(p) for p in inner.state} == held
        results.append(state(model))
    assert same(*results)


def test_fit_takes_a_wrapped_optimiser(tmp_path):
    x, y = classes(32)
    path = tmp_path / "run.checkpoint"
    options = {"epochs": 3, "batch_size": 16, "progress": False, "checkpoint": path}
    results = []
    for wrap in (lambda o: o, LikeAccelerate):
        path.unlink(missing_ok=True)
        for resume in (False, True):
            model = classifier(ub.TruncatedPoisson(1.0), depth_prior=ub.PoissonDepth(30.0))
            optimizer = wrap(ub.make_optimizer(model, lr=0.05, depth_lr_ratio=3.0))
            epochs = {"epochs": 6} if resume else {}
            ub.fit(model, x, y, optimizer=optimizer, resume=resume, **{**options, **epochs})
        results.append(state(model))
    assert same(*results)


# Heads without parameters, tied output layers ----------------------------------------------------


def identity_heads(depth=None):
    layers = ub.CustomLayers(
        lambda d: nn.Sequential(nn.Linear(3 if d == 1 else 2, 2), nn.Tanh()),
        lambda d: nn.Identity(),
    )
    return ub.UDN(layers, ub.Categorical(2), ub.TruncatedPoisson(1.0) if depth is None else depth)


def tied_output(depth=None):
    """A layer's weight is that of every head too, as in models of language."""
    weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, h):
            return h @ self.weight.t()

    layers = ub.CustomLayers(
        lambda d: nn.Linear(3, 4) if d == 1 else nn.Sequential(Tied(), nn.Tanh()),
        lambda d: Tied(),
    )
    return ub.UDN(layers, ub.Categorical(4), ub.TruncatedPoisson(1.0) if depth is None else depth)


@pytest.mark.parametrize("make", [identity_heads, tied_output])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_heads_without_parameters_of_their_own(make, kind):
    model = make()
    optimizer = ub.make_optimizer(model, kind, lr=0.05)
    step_of(model, optimizer)
    raise_rate(model, 5.0)
    info = step_of(model, optimizer)
    assert info.growth.hidden
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held})
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    x, y = classes(32)
    result = ub.fit(
        make(), x, y, validation=(x, y), epochs=3, batch_size=16, optimizer=kind, progress=False
    )
    assert len(result.history) == 3


def test_models_whose_first_layers_have_no_parameters_can_grow():
    layers = ub.CustomLayers(
        lambda d: nn.Identity() if d == 1 else nn.Linear(3, 3), lambda d: nn.Linear(3, 2)
    )
    model = ub.UDN(layers, ub.Categorical(2), ub.TruncatedPoisson(0.01))
    optimizer = ub.make_optimizer(model, lr=0.05)
    step_of(model, optimizer)
    raise_rate(model, 4.0)
    step_of(model, optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}


# Shapes and types --------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [1, 2])
@pytest.mark.parametrize(
    ("likelihood", "size", "data"),
    [
        (lambda: ub.Categorical(2), 2, classes),
        (lambda: ub.Bernoulli(), 1, classes),
        (lambda: ub.Gaussian(), 1, numbers),
        (lambda: ub.Gaussian(InputNoise()), 2, numbers),
    ],
    ids=["categorical", "bernoulli", "gaussian", "input noise"],
)
def test_outputs_with_too_many_axes_are_refused(likelihood, size, data, extra):
    layers = ub.CustomLayers(
        lambda d: nn.Linear(3, 3),
        lambda d: nn.Sequential(nn.Linear(3, size), nn.Unflatten(1, (*[1] * extra, size))),
    )
    model = ub.UDN(layers, likelihood())
    x, y = data(16)
    with pytest.raises(ValueError, match="heads must give"):
        model.predict(x)
    with pytest.raises(ValueError, match="heads must give"):
        ub.fit(model, x, y, epochs=1, batch_size=8, progress=False)


@pytest.mark.parametrize(
    ("log_prob", "shape"),
    [
        (lambda outputs, y: -(outputs - y[:, None]).abs(), r"\(4, 8, 1\)"),
        (lambda outputs, y: -(outputs[..., 0] - y).abs().sum(1), r"\(4,\)"),
        (lambda outputs, y: -(outputs[..., 0] - y).abs().sum(), r"\(\)"),
        (lambda outputs, y: -(outputs[..., 0] - y).abs().t(), r"\(8, 4\)"),
    ],
)
def test_a_log_prob_of_a_wrong_shape_is_named(log_prob, shape):
    class Mine(Likelihood):
        def log_prob(self, outputs, y):
            return log_prob(outputs, y)

    model = ub.UDN(ub.Dense(3, 4, 1), Mine(), ub.FiniteDepth(4), ub.UniformDepth(4))
    x, y = numbers(8)
    message = rf"log_prob of Mine.*\(4, 8\), got {shape} from outputs \(4, 8, 1\).*targets \(8,\)"
    with pytest.raises(ValueError, match=message):
        ub.step(model, ub.make_optimizer(model), x, y, 8)
    with pytest.raises(ValueError, match=message):
        model.elbo(x, y, 8)
    with pytest.raises(ValueError, match="log_prob of Mine"):
        ub.fit(model, x, y, epochs=1, batch_size=8, progress=False)
    with pytest.raises(ValueError, match="log_prob of Mine"):
        model.predict(x).log_prob(y)


@pytest.mark.parametrize("noise", ["input", 0.5, InputNoise])
def test_a_noise_that_is_none_is_refused(noise):
    with pytest.raises(TypeError, match="noise must be LearntNoise"):
        ub.Gaussian(noise=noise)


# What a step costs -------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Counts matrix products by the name of their operation."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__.rstrip("_")
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "categorical"])
def test_a_step_runs_the_forward_pass_once(likelihood):
    made = {
        "gaussian": (1, ub.Gaussian()),
        "bernoulli": (1, ub.Bernoulli()),
        "categorical": (2, ub.Categorical(2)),
    }
    size, likelihood = made[likelihood]
    model = ub.UDN(ub.Dense(3, 4, size), likelihood, ub.TruncatedPoisson(2.0))
    optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.01)
    x, y = numbers(8) if isinstance(likelihood, ub.Gaussian) else classes(8)
    y = likelihood.check_targets(y)
    with Products() as once:
        outputs = model(x, model.support())  # as a step calls it
        torch.autograd.grad(outputs.sum(), list(model.network.parameters()))
    with Products() as products:
        ub.step(model.train(), optimizer, x, y, 8)
    layers = model.depth.max_depth()
    assert sum(once.counts.values()) >= 3 * layers  # forwards, and two backwards
    assert products.counts == once.counts  # one pass forwards, one backwards, and no more


# Gradients in pieces -----------------------------------------------------------------------------


def gradient_of(model, x, y, weights=None, num_data=40, **options):
    from unbounded.steps.objective import Gradient
    from unbounded.steps.options import StepOptions

    gradient = Gradient(model, num_data, StepOptions(**options))
    gradient.add(x, y, weights)
    gradient.finish()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("paces", [{}, {"equal_heads": True, "equal_layers": True}])
@pytest.mark.parametrize("prior", ["closed form", "autograd"])
def test_gradients_add_up(prior, paces):
    """As `backward` does: nothing is overwritten."""
    model = classifier(ub.TruncatedPoisson(2.0)).double()
    if prior == "autograd":
        model.weight_prior.precision = None
    x, y = classes(40)
    x = x.double()
    halves = [(x[:20], y[:20]), (x[20:], y[20:])]
    alone = []
    for half in halves:
        model.zero_grad(set_to_none=True)
        alone.append(gradient_of(model, *half, **paces))
    model.zero_grad(set_to_none=True)
    for half in halves:
        together = gradient_of(model, *half, **paces)
    for name, grad in together.items():
        torch.testing.assert_close(grad, alone[0][name] + alone[1][name])


def test_a_parameter_that_the_data_do_not_need_is_pulled_by_the_prior_alone():
    """Its KL counts, so it has the gradient of its KL, by the closed form as by autograd."""

    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.spare = nn.Parameter(torch.full((2,), 5.0))

    layers = ub.CustomLayers(lambda d: Spare(), lambda d: nn.Linear(3, 2))
    for precision in (1.0, None):
        model = ub.UDN(layers, ub.Categorical(2), ub.TruncatedPoisson(2.0))
        model.weight_prior.precision = precision
        found = gradient_of(model, *classes(40))
        q = model.depth.log_probs().detach().exp()
        for depth in (1, 3):
            expected = 5.0 * float(q[depth - 1 :].sum()) / 40
            grad = found[f"network.hidden.{depth}.spare"]
            torch.testing.assert_close(grad, torch.full((2,), expected))


@pytest.mark.parametrize("paces", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "pieces"), [(40, 4), (40, 7), (5, 8)])
def test_micro_batches_are_the_whole_batch(rows, pieces, weighted, paces):
    x, y = classes(rows)
    x = x.double()
    weights = torch.rand(rows, dtype=torch.float64) + 0.1 if weighted else None
    found, grown = [], []
    for count in (1, pieces):
        model = classifier(ub.TruncatedPoisson(1.0)).double()
        optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1)
        raise_rate(model, 4.0)
        info = ub.step(
            model.train(),
            optimizer,
            x,
            y,
            100,
            weights=weights,
            micro_batches=count,
            equal_heads=paces,
            equal_layers=paces,
        )
        grown.append(info.growth)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))
        found.append({**state(model), **info.terms._asdict(), "loss": torch.tensor(info.loss)})
    assert grown[0] == grown[1]
    assert grown[0].hidden
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])


# Groups of the user's own ------------------------------------------------------------------------


def test_new_layers_join_the_group_of_the_deepest_older_one():
    model = classifier(ub.TruncatedPoisson(1.0))
    depths = range(1, model.network.num_layers + 1)
    groups = [{"params": list(model.depth.parameters()), "lr": 0.01}]
    for role in ("hidden", "heads"):
        for depth in depths:
            module = getattr(model.network, role)[str(depth)]
            rate = (1.0 if role == "hidden" else 2.0) / 10**depth
            groups.append({"params": list(module.parameters()), "lr": rate})
    optimizer = torch.optim.Adam(groups)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in groups], total_steps=10
    )
    count = len(optimizer.param_groups)
    raise_rate(model, 6.0)
    step_of(model, optimizer)
    scheduler.step()
    assert len(optimizer.param_groups) == count
    born = range(depths[-1] + 1, model.network.num_layers + 1)
    assert born
    for role in ("hidden", "heads"):
        place = 1 + len(depths) * (1 + (role == "heads")) - 1
        held = {id(p) for p in optimizer.param_groups[place]["params"]}
        for depth in (depths[-1], *born):
            module = getattr(model.network, role)[str(depth)]
            assert {id(p) for p in module.parameters()} <= held


# Families and priors that break their promises ---------------------------------------------------


class Geometric(DepthFamily):
    """log q(ℓ) falls by a constant with every layer: the mode is 1 whatever λ is."""

    def __init__(self, slope=0.5):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def scores(self, at, size):
        slope = nn.functional.softplus(at["slope"].double())[..., None]
        return -slope * torch.arange(size, device=slope.device)

    def end(self, at, size):
        slope = nn.functional.softplus(at["slope"].double())
        return (1 + (3 / slope).floor()).clamp(max=1e6).long()


class BoundedGeometric(Geometric):
    is_unbounded = False
    bound = 6

    def end(self, at, size):
        return super().end(at, size).clamp(max=6)


def test_a_family_whose_mode_never_moves_is_not_unbounded():
    with pytest.raises(ValueError, match=r"Geometric .*depth 2 .*Definition 1"):
        classifier(Geometric())
    for family in (ub.TruncatedPoisson(), ub.TruncatedConwayMaxwell(2.0, 6.0)):
        classifier(family)


def test_a_bounded_family_may_be_geometric():
    model = classifier(BoundedGeometric(), depth_prior=ub.UniformDepth(6))
    assert model.depth.max_depth() <= 6
    x, y = classes(32)
    before = model.depth.slope.item()
    result = ub.fit(model, x, y, epochs=3, batch_size=16, progress=False)
    assert len(result.history) == 3
    assert model.depth.slope.item() != before


class Holed(DepthPrior):
    """No mass at depth 3."""

    def log_prob(self, depth):
        value = -depth.double() * math.log(2)
        return torch.where(depth == 3, -torch.inf, value)


def test_a_prior_with_a_hole_is_told_so():
    x, y = classes(32)
    model = classifier(ub.TruncatedPoisson(2.0), depth_prior=Holed())
    with pytest.raises(ValueError, match=r"Holed gives depth 3 no mass.*q\(ℓ\) has") as caught:
        step_of(model)
    assert "learning rate" not in str(caught.value)
    with pytest.raises(ValueError, match="Holed gives depth 3 no mass"):
        model.elbo(x, y, 32)
    with pytest.raises(ValueError, match="Holed gives depth 3 no mass"):
        ub.fit(model, x, y, epochs=1, batch_size=16, progress=False)
    # Where q has none either, there is nothing to say.
    step_of(classifier(ub.FixedDepth(2), depth_prior=Holed()))


# What the documents say --------------------------------------------------------------------------


def paragraphs(text):
    return [re.sub(r"\s+", " ", part) for part in re.split(r"\n\s*\n", text)]


def test_the_objective_is_called_a_surrogate():
    """With weights at a point 𝓛 bounds nothing; where a bound is named, it is said when."""
    from unbounded import elbo

    for text in (MATHS.read_text(), elbo.__doc__):
        assert "surrogate" in text
        for part in paragraphs(text):
            if "lower bound" in part:
                assert "surrogate" in part or "weights held fixed" in part, part
    for function in vars(elbo).values():
        doc = getattr(function, "__doc__", None) or ""
        if getattr(function, "__module__", "") == elbo.__name__ and "lower bound" in doc:
            assert "surrogate" in doc
