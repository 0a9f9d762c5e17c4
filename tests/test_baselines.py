"""The networks that the paper compares with: shapes, gradients, solvers, training by `fit`."""

import itertools
import sys

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import nn

import unbounded as ub
from unbounded.baselines import (
    MDEQ,
    BareODE,
    ChannelDropout,
    DenseODE,
    Dropped,
    ResNet18,
    SharedHeadConv,
    StemODE,
    Whole,
    dropping,
    dun_of,
    plain,
)
from unbounded.baselines.equilibrium import FixedPoint, Multiscale
from unbounded.baselines.ode import ODE, Autonomous, PixelSlope, TimedSlope, runge_kutta
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.layers.convolutional import he_
from unbounded.layers.draws import drawing_from
from unbounded.training import Augment, ImageData


def needs(package):
    return pytest.importorskip(package, reason=f"{package} is of the extra 'baselines'")


SMALL = {
    "resnet18": lambda: ResNet18(3, 4, width=4, blocks=(1, 1, 1)),
    "node": lambda: BareODE(3, 4, size=(8, 8), filters=6),
    "anode": lambda: BareODE(3, 4, size=(8, 8), filters=6, augment=2),
    "node-stem": lambda: StemODE(3, 4, width=4, tolerance=0.1),
    "anode-stem": lambda: StemODE(3, 4, width=4, augment=4, tolerance=0.1),
    "adjoint": lambda: BareODE(3, 4, size=(8, 8), filters=6, adjoint=True),
    "fixed steps": lambda: StemODE(3, 4, width=4, solver="rk4"),
    "fixed node": lambda: BareODE(3, 4, size=(8, 8), filters=6, solver="rk4"),
    "mdeq": lambda: MDEQ(3, 4, channels=(4, 8), expansion=2, readout=4, iterations=6),
    "repeat": lambda: MDEQ(
        3, 4, channels=(4, 8), expansion=2, readout=4, iterations=6, solver="repeat"
    ),
    "implicit": lambda: MDEQ(
        3, 4, channels=(4, 8), expansion=2, readout=4, iterations=6, gradient="implicit"
    ),
}


def small(name: str) -> Whole:
    if name.endswith(("node", "node-stem", "adjoint")) and "fixed" not in name:
        needs("torchdiffeq")
    if name in ("mdeq", "implicit"):
        needs("torchdeq")
    return SMALL[name]()


def images(rows=32, size=8, seed=0):
    """Four colours under noise."""
    draw = np.random.default_rng(seed)
    y = np.arange(rows) % 4
    colours = np.random.default_rng(9).uniform(40, 216, (4, 1, 1, 3))
    x = (colours[y] + draw.normal(0, 25, (rows, size, size, 3))).clip(0, 255)
    return ImageData(x.astype(np.uint8), y, augment=Augment(crop=1, flip=True))


@pytest.mark.parametrize("name", SMALL)
def test_a_network_is_a_model_of_depth_one(name):
    model = plain(small(name), ub.Categorical(4), seed=3)
    x = images().inputs(slice(8))
    outputs = model(x)
    assert outputs.shape == (1, 8, 4)
    assert not outputs.any()  # heads begin at zero, as the UDN's
    assert model.depth_log_probs().exp().tolist() == [1.0]
    probs = model.predict(x).probs
    torch.testing.assert_close(probs, torch.full((8, 4), 0.25))
    with torch.no_grad():
        for parameter in model.network.heads.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    model.train()
    log_lik = model.likelihood.log_lik(model(x), torch.arange(8) % 4)
    log_lik.sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(torch.isfinite(parameter.grad).all()), key
        assert parameter.grad.abs().max() > 0, key
    with pytest.raises(ValueError, match="has one layer, depth 2"):
        model.layers.hidden(2)
    again = plain(small(name), ub.Categorical(4), seed=3)
    other = plain(small(name), ub.Categorical(4), seed=4)
    first, second, third = (next(iter(m.network.parameters())) for m in (model, again, other))
    assert torch.equal(first, second)  # its seed decides, and nothing else
    assert not torch.equal(first, third)


@pytest.mark.parametrize("name", SMALL)
def test_steps_of_training_lower_the_loss(name):
    model = plain(small(name), ub.Categorical(4), seed=1).train()
    data = images()
    optimizer = ub.make_optimizer(model, torch.optim.SGD, 0.05, momentum=0.9)
    batch = (data.inputs(), data.y)
    losses = [ub.step(model, optimizer, *batch, num_data=32).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("name", ["resnet18", "node", "anode-stem", "mdeq"])
def test_fit_resumes_it_bit_for_bit(name, tmp_path):
    def fitted(epochs, **options):
        model = plain(small(name), ub.Categorical(4), seed=1)
        optimizer = ub.make_optimizer(model, torch.optim.SGD, 0.05, momentum=0.9)
        result = ub.fit(
            model, images(), batch_size=16, epochs=epochs, optimizer=optimizer, seed=5, **options
        )
        return model, result.history

    model, history = fitted(2)
    path = tmp_path / "run.checkpoint"
    fitted(1, checkpoint=path)
    resumed, course = fitted(2, checkpoint=path, resume=True)
    assert [r["elbo"] for r in course] == [r["elbo"] for r in history]
    for (key, one), other in zip(
        model.state_dict().items(), resumed.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), key


def test_sizes_are_those_that_are_published():
    """Dupont et al. (2019) give 172,358 and 171,799 weights; ResNet-18 has 11.17 million."""
    count = lambda layers: sum(  # noqa: E731
        p.numel() for p in plain(layers, ub.Categorical(10)).parameters()
    )
    assert count(ResNet18(3, 10)) == 11_173_962
    needs("torchdiffeq")
    assert count(BareODE(3, 10)) == 172_358
    assert count(BareODE(3, 10, filters=64, augment=10)) == 171_799


def linear_slope(seed=0):
    """dh/dt = W h over channels, and W."""
    conv = nn.Conv2d(5, 5, 1, bias=False).double()
    weight = np.random.default_rng(seed).normal(0, 0.7, (5, 5))
    conv.weight.data = torch.tensor(weight)[:, :, None, None]
    return Autonomous(conv), weight


@pytest.mark.parametrize(("solver", "tolerance"), [("dopri5", 1e-9), ("rk4", 1e-9)])
def test_a_linear_ode_is_a_matrix_exponential(solver, tolerance):
    needs("torchdiffeq")
    slope, weight = linear_slope()
    x = torch.randn(3, 5, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.einsum("ij,bjhw->bihw", torch.tensor(expm(weight)), x)
    found = ODE(slope, solver, tolerance)(x)
    error = (found - expected).abs().max().item()
    assert error < (1e-7 if solver == "dopri5" else 1e-3)


def test_a_tolerance_holds_and_costs():
    """Ten thousand times the tolerance is an error of about that much more, for fewer calls."""
    needs("torchdiffeq")
    slope, weight = linear_slope(1)
    calls = []
    slope.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 5, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.einsum("ij,bjhw->bihw", torch.tensor(expm(weight)), x)
    seen = []
    for tolerance in (1e-3, 1e-7):
        calls.clear()
        error = (ODE(slope, "dopri5", tolerance)(x) - expected).abs().max().item()
        seen.append((error, len(calls)))
        assert error < 10 * tolerance
    assert seen[0][0] > 10 * seen[1][0]
    assert seen[0][1] < seen[1][1]


def test_both_gradients_of_an_ode_agree():
    """Through the solver's steps, and by the adjoint ODE; and with that of the exponential."""
    needs("torchdiffeq")
    x = torch.randn(2, 5, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    grads = []
    for adjoint in (False, True):
        slope, weight = linear_slope(2)
        ODE(slope, "dopri5", 1e-9, adjoint)(x).square().sum().backward()
        grads.append(slope.slope.weight.grad[:, :, 0, 0])
    exact = torch.tensor(weight, requires_grad=True)
    torch.einsum("ij,bj->bi", torch.matrix_exp(exact), x[:, :, 0, 0]).square().sum().backward()
    for grad in grads:
        torch.testing.assert_close(grad, exact.grad, rtol=1e-5, atol=1e-6)


def test_an_ode_sees_the_time_and_keeps_its_precision():
    needs("torchdiffeq")
    slope = TimedSlope(8)
    state = torch.randn(2, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    early, late = (slope(torch.tensor(t), state) for t in (0.0, 1.0))
    assert (early - late).abs().max() > 1e-3
    with torch.autocast("cpu", torch.bfloat16):
        found = ODE(slope)(state)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ODE(slope)(state))


def test_fixed_steps_keep_the_state_in_single_precision():
    """Only slopes are rounded to 16 bits, and by far fewer digits than the state would lose."""
    slope = TimedSlope(8)
    state = torch.randn(2, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    exact = ODE(slope, "rk4")(state)
    with torch.autocast("cpu", torch.bfloat16):
        found = ODE(slope, "rk4")(state)
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.05
    few, more = ODE(slope, "rk4", steps=2)(state), ODE(slope, "rk4", steps=32)(state)
    assert (exact - more).abs().max() < (few - more).abs().max()
    with pytest.raises(ValueError, match="steps must be at least 1"):
        BareODE(3, 4, solver="rk4", steps=0)


def test_slopes_are_the_convolutions_that_they_say():
    """Zeros that fill vectors of channels, and the time apart, change nothing."""
    draw = torch.Generator().manual_seed(0)
    state = torch.randn(2, 3, 5, 5, generator=draw)
    pixel = PixelSlope(3, 6)
    plainly = nn.Sequential(pixel.conv1, nn.ReLU(), pixel.conv2, nn.ReLU(), pixel.conv3)
    torch.testing.assert_close(pixel(torch.tensor(0.5), state), plainly(state))
    state = torch.randn(2, 8, 5, 5, generator=draw)
    timed = TimedSlope(8)
    hidden = state
    for norm, conv in ((timed.norm1, timed.conv1), (timed.norm2, timed.conv2)):
        time = torch.full((2, 1, 5, 5), 0.5)
        hidden = conv(torch.cat([torch.relu(norm(hidden)), time], 1))
    torch.testing.assert_close(timed(torch.tensor(0.5), state), timed.norm3(hidden))


def test_an_ode_without_a_way_is_told():
    needs("torchdiffeq")

    class Exploding(nn.Module):
        def forward(self, time, state):
            return 100 * state**2

    with pytest.raises(FloatingPointError, match="the ODE could not be solved"):
        ODE(Exploding())(torch.ones(1, 1, 1, 1))


def contraction(seed=0):
    """f(z, x) of two resolutions as it begins, and what is injected."""
    draws = torch.Generator().manual_seed(seed)
    with drawing_from(draws):
        block = Multiscale((8, 16), 2).double()
        he_(block)
        block.contract()
        injected = [torch.randn(3, 8, 8, 8).double(), torch.randn(3, 16, 4, 4).double()]
    return block, injected


@pytest.mark.parametrize("solver", ["fixed_point_iter", "anderson", "broyden"])
def test_a_fixed_point_is_one(solver):
    needs("torchdeq")
    block, injected = contraction()
    tolerance = 1e-6
    point = FixedPoint(block, solver=solver, tolerance=tolerance, iterations=200).eval()
    found = point(injected)
    again = block(injected, found)
    flat, other = (torch.cat([z.flatten(1) for z in states], 1) for states in (found, again))
    # The solvers give f of the point that they measured: one step further, it is nearer still.
    residual = (other - flat).norm(dim=1) / other.norm(dim=1)
    assert residual.max() < tolerance
    assert point.residuals.max() < tolerance
    assert flat.abs().max() > 0.1
    few = FixedPoint(block, solver=solver, tolerance=tolerance, iterations=3).eval()
    few(injected)
    assert few.residuals.max() > tolerance  # and it says so where it is none


def test_repeating_is_a_fixed_point_iteration_without_a_tolerance():
    """The same states, residuals and phantom gradients as by torchdeq."""
    needs("torchdeq")
    block, injected = contraction(1)
    found = []
    for solver in ("fixed_point_iter", "repeat"):
        point = FixedPoint(block, solver=solver, tolerance=0.0, iterations=12).train()
        states = point(injected)
        sum(z.square().sum() for z in states).backward()
        grads = [p.grad.clone() for p in block.parameters()]
        block.zero_grad()
        found.append(
            [*[z.detach() for z in states], *grads, point.residuals, *point.eval()(injected)]
        )
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="'repeat' has a phantom gradient"):
        MDEQ(3, 4, solver="repeat", gradient="implicit")
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        MDEQ(3, 4, solver="repeat", iterations=0)


def test_a_fixed_point_keeps_its_precision():
    needs("torchdeq")
    model = plain(SMALL["mdeq"](), ub.Categorical(4)).eval()
    x = images().inputs(slice(4))
    states = []
    point = model.network.hidden["1"].point
    point.register_forward_hook(lambda module, given, found: states.extend(found))
    with torch.autocast("cpu", torch.bfloat16):
        model.predict(x)
    assert {state.dtype for state in states} == {torch.float32}
    assert point.residuals.max() < 0.1


@pytest.mark.parametrize("name", ["mdeq", "repeat"])
def test_sixteen_bits_leave_no_weight_without_a_gradient(name):
    """Weights are rounded first without gradients, then with them."""
    model = plain(small(name), ub.Categorical(4), seed=1).train()
    layer = model.network.hidden["1"]
    x = images().inputs(slice(8))
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            layer(x).float().square().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in layer.parameters()]))
    assert torch.cosine_similarity(*grads, 0) > 0.98


def test_the_implicit_gradient_is_that_of_the_point():
    """Beside many steps of the iteration, differentiated one by one."""
    needs("torchdeq")
    block, injected = contraction(2)
    point = FixedPoint(block, tolerance=1e-12, iterations=300, gradient="implicit").train()
    sum(z.square().sum() for z in point(injected)).backward()
    implicit = {k: p.grad.clone() for k, p in block.named_parameters()}
    block.zero_grad()
    states = [torch.zeros_like(each) for each in injected]
    for _ in range(80):
        states = block(injected, states)
    sum(z.square().sum() for z in states).backward()
    for key, parameter in block.named_parameters():
        torch.testing.assert_close(implicit[key], parameter.grad, rtol=1e-4, atol=1e-6)
    # A phantom gradient is another one, in about the same direction.
    block.zero_grad()
    phantom = FixedPoint(block, tolerance=1e-9, iterations=300).train()
    sum(z.square().sum() for z in phantom(injected)).backward()
    a, b = (
        torch.cat([g.flatten() for g in grads])
        for grads in (implicit.values(), [p.grad for p in block.parameters()])
    )
    assert torch.cosine_similarity(a, b, 0) > 0.8
    assert (a - b).abs().max() > 1e-6


def test_a_shared_head_sees_every_stage():
    layers = SharedHeadConv(3, 4, width=2, stages=(1, 1))
    model = dun_of(layers, ub.Categorical(4), 5)
    assert len(model.network.heads) == 1
    assert model.depth_log_probs().exp().tolist() == pytest.approx([0.2] * 5)
    head = model.network.heads["1"]
    assert head.weight.shape == (4, layers.shape(4).outputs)
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = images().inputs(slice(6))
    model.eval()
    outputs = model(x)
    assert outputs.shape == (5, 6, 4)
    for depth, state in enumerate(model.network.states(x, 5), 1):
        mean = state.mean((2, 3))
        padded = torch.cat([mean, torch.zeros(6, head.in_features - mean.shape[1])], 1)
        torch.testing.assert_close(outputs[depth - 1], padded @ head.weight.T + head.bias)


@pytest.mark.parametrize("kind", [SharedHeadConv, ub.ResidualConv])
def test_a_dun_learns_weights_and_depths(kind):
    model = dun_of(kind(3, 4, width=2, stages=(1, 1)), ub.Categorical(4), 5)
    before = model.depth.mean()
    optimizer = ub.make_optimizer(model, torch.optim.SGD, 0.1, depth_lr_ratio=1.0, momentum=0.9)
    history = ub.fit(model, images(), batch_size=16, epochs=4, optimizer=optimizer).history
    assert history[-1]["expected_log_lik"] > history[0]["expected_log_lik"]
    assert model.depth.mean() != before
    assert model.depth.max_depth() == 5


@pytest.mark.parametrize(
    ("package", "make"),
    [("torchdiffeq", "node"), ("torchdiffeq", "node-stem"), ("torchdeq", "mdeq")],
)
def test_a_missing_extra_is_told_before_training(monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package} is not installed.*unbounded\[baselines\]"):
        SMALL[make]()


@pytest.mark.parametrize("name", ["resnet18", "anode", "anode-stem", "implicit"])
def test_a_configuration_rebuilds_it(name):
    layers = small(name)
    again = type(layers)(**layers.config())
    assert again.config() == layers.config()
    sizes = [
        [p.shape for p in plain(one, ub.Categorical(4)).parameters()] for one in (layers, again)
    ]
    assert sizes[0] == sizes[1]


def test_what_a_graph_can_hold_is_said():
    assert ResNet18.has_fixed_steps
    for kind in (BareODE, StemODE):
        assert kind(3, 4, solver="rk4").has_fixed_steps
    assert MDEQ(3, 4, solver="repeat").has_fixed_steps
    needs("torchdiffeq")
    for kind in (BareODE, StemODE, DenseODE):
        assert not kind(3, 4, solver="dopri5").has_fixed_steps
        assert not kind(3, 4, solver="rk4", adjoint=True).has_fixed_steps
    needs("torchdeq")
    assert not MDEQ(3, 4).has_fixed_steps


def test_our_own_solvers_need_no_package(monkeypatch):
    for package in ("torchdiffeq", "torchdeq"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("fixed steps", "fixed node", "repeat"):
        model = plain(SMALL[name](), ub.Categorical(4))
        model.predict(images().inputs(slice(2)))


@pytest.mark.parametrize("name", ["fixed node", "fixed steps", "repeat"])
def test_graphs_train_what_has_fixed_steps(name):
    """As the plain engine does; here without graphs, which need a GPU."""
    found = []
    for engine in (Eager(), Graphs()):
        model = plain(small(name), ub.Categorical(4), seed=1)
        optimizer = ub.make_optimizer(model, torch.optim.SGD, 0.05, momentum=0.9)
        ub.fit(model, images(), batch_size=16, epochs=2, optimizer=optimizer, seed=5, engine=engine)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(("name", "most"), [("fixed node", 2), ("fixed steps", 4), ("repeat", 4)])
def test_a_slope_is_compiled_once_and_not_for_each_step(name, most, compiler):
    """Eight steps are 32 slopes; of the block of a fixed point there are 11 calls."""
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = plain(small(name), ub.Categorical(4), seed=1).train()
    layer = model.network.hidden["1"]
    x = images().inputs(slice(4))
    compiled = torch.compile(layer, backend=counted, dynamic=False)
    found = compiled(x)
    torch.testing.assert_close(found, compiled(x))
    assert 1 <= len(graphs) <= most
    found.float().sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    again = layer(x)
    again.float().sum().backward()
    torch.testing.assert_close(found, again)
    for one, parameter in zip(grads, layer.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


@pytest.mark.parametrize("gradient", ["exact", ""])
def test_unknown_gradients_are_refused(gradient):
    with pytest.raises(ValueError, match="gradient must be one of"):
        MDEQ(3, 4, gradient=gradient)


# On plain numbers


def test_fixed_steps_of_fourth_order_by_a_closed_form():
    """dh/dt = A h ends at exp(A) h, but for an error that falls with the fourth power."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    start = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    expected = start @ torch.from_numpy(expm(matrix.numpy())).T

    class Linear(nn.Module):
        def forward(self, time, state):
            return state @ matrix.T

    class Timed(nn.Module):
        def forward(self, time, state):
            return 5 * time**4 + 0 * state  # its integral over a unit of time is 1

    far = [(runge_kutta(Linear(), start, n) - expected).abs().max().item() for n in (8, 16, 32)]
    assert far[0] < 1e-2
    for coarse, fine in itertools.pairwise(far):
        assert 12 < coarse / fine < 20
    end = runge_kutta(Timed(), start, 8)
    torch.testing.assert_close(end, start + 1, rtol=0, atol=1e-4)


def test_odes_of_a_population_train_as_if_alone():
    def models():
        kinds = [DenseODE(2, 2, width=6, augment=2, init="he") for _ in range(2)]
        return [plain(kind, ub.Categorical(2), seed=seed) for seed, kind in enumerate(kinds)]

    parts = [ub.data.spiral(2.0, 64, seed=seed) for seed in range(2)]
    options = {"epochs": 3, "batch_size": 32, "lr": 0.01, "seed": 0, "progress": False}
    together, alone = models(), models()
    ub.fit(together, parts, engine=Stacked(), **options)
    for model, part in zip(alone, parts, strict=True):
        ub.fit(model, *part, engine=Eager(), **options)
    for a, b in zip(together, alone, strict=True):
        for (name, left), right in zip(a.named_parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5, msg=name)


def test_fixed_steps_are_near_to_those_that_adapt():
    needs("torchdiffeq")
    x = torch.randn(20, 2)
    fixed, free = (
        plain(DenseODE(2, 2, init="he", solver=solver, tolerance=1e-6), ub.Categorical(2), seed=1)
        for solver in ("rk4", "dopri5")
    )
    assert fixed.layers.has_fixed_steps
    assert not free.layers.has_fixed_steps
    torch.testing.assert_close(fixed(x), free(x), rtol=1e-2, atol=1e-3)


# Dropout


def test_a_share_of_the_channels_is_left_out():
    layer = ChannelDropout(0.3)
    x = torch.randn(400, 50, 2, 2)
    first, second = layer(x), layer(x)
    gone = (first == 0).flatten(2)
    assert torch.equal(gone.all(2), gone.any(2))  # whole channels
    kept = ~gone.all(2)
    assert (~kept).float().mean().item() == pytest.approx(0.3, abs=0.015)  # four deviations
    torch.testing.assert_close(first[kept], x[kept] / 0.7)
    # Masks of two batches, rows or channels are as independent as they look.
    other = (second != 0).flatten(2).any(2)
    for a, b in ((kept, other), (kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        pairs = torch.stack([a.flatten().float(), b.flatten().float()])
        assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.03
    assert torch.equal(layer.eval()(x), x)


def test_masks_go_by_the_seed_and_go_on_from_a_state():
    generator = torch.Generator().manual_seed(3)
    with drawing_from(generator):
        layer = ChannelDropout(0.5)
    with drawing_from(generator.manual_seed(3)):
        twin = ChannelDropout(0.5)
    x = torch.ones(8, 6)
    assert torch.equal(layer(x), twin(x))
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    after = layer(x)
    twin.load_state_dict(state)
    assert torch.equal(twin(x), after)
    assert not torch.equal(ChannelDropout(0.5)(x), after)


@pytest.mark.parametrize("where", ["head", "blocks"])
def test_dropout_in_training_and_in_predictions(where):
    layers = Dropped(ub.ResidualConv(3, 4, width=4, stages=(1, 1)), 0.5, where)
    model = ub.UDN(layers, ub.Categorical(4), ub.FixedDepth(3), seed=1)
    data = images()
    ub.fit(model, data, epochs=2, batch_size=16, lr=0.05, progress=False)
    count = sum(isinstance(module, ChannelDropout) for module in model.modules())
    assert count == {"head": 1, "blocks": 2}[where]
    inputs = data.inputs()
    plain_probs = model.predict(inputs).probs
    assert torch.equal(model.predict(inputs).probs, plain_probs)
    seen = [m.seen.item() for m in model.modules() if isinstance(m, ChannelDropout)]
    with dropping(model):
        passes = [model.predict(inputs).probs for _ in range(2)]
    with dropping(model):
        again = model.predict(inputs).probs
    assert not torch.equal(passes[0], passes[1])
    assert torch.equal(passes[0], again)
    assert [m.seen.item() for m in model.modules() if isinstance(m, ChannelDropout)] == seen
    assert torch.equal(model.predict(inputs).probs, plain_probs)
    for wrong in ((0.0, "head"), (1.0, "head"), (0.5, "tail")):
        with pytest.raises(ValueError, match="must be"):
            Dropped(layers, *wrong)
    with pytest.raises(ValueError, match="share must be between 0 and 1, got 2"):
        ChannelDropout(2)


def test_populations_drop_as_lone_models_do():
    x, y = torch.randn(24, 2), torch.randint(2, (24,))
    ends = []
    for engine in (Eager(), Stacked()):
        layers = Dropped(ub.Dense(2, 8, 2), 0.4, "blocks")
        nets = [ub.UDN(layers, ub.Categorical(2), ub.FixedDepth(3), seed=s) for s in range(2)]
        ub.fit(nets, x, y, epochs=2, batch_size=12, lr=0.05, engine=engine, progress=False)
        ends.append([net.predict(x).probs for net in nets])
    torch.testing.assert_close(*ends)
