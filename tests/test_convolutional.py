"""The convolutional generator: its closed form, its heads, and the ways to run it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unbounded as ub
from helpers import same, state
from unbounded.baselines import ResNet18
from unbounded.layers.convolutional import Bottleneck, Pointwise, PooledLinear, Stem, pooled
from unbounded.network import LayerError


def model_of(depth=None, **options):
    strides = (1, 2, 2) if options.get("block") == "basic" else None
    layers = ub.ResidualConv(3, 4, width=4, stages=(1, 2), strides=strides, **options)
    return ub.UDN(layers, ub.Categorical(4), ub.TruncatedPoisson(3.0) if depth is None else depth)


def images(rows=6, size=8):
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_the_paper_s_shapes():
    layers = ub.ResidualConv(3, 10)
    assert layers.shape(1) == (3, 0, 64, 1)
    assert [layers.shape(d).inner for d in range(2, 13)] == [64] * 3 + [128] * 5 + [256] * 3
    assert [d for d in range(1, 40) if layers.shape(d).stride == 2] == [2, 5, 10]
    assert layers.shape(1_000_000) == (1024, 256, 1024, 1)
    # Main-path convolutions of Ω_5, Ω_10 and Ω_30: 3L − 2, as counted in the authors' networks.
    for depth in (5, 10):
        layers_up_to = [layers.hidden(d) for d in range(1, depth + 1)]
        main = [
            m
            for layer in layers_up_to
            for name, m in layer.named_modules()
            if isinstance(m, nn.Conv2d) and "shortcut" not in name
        ]
        assert len(main) == 3 * depth - 2


def test_basic_blocks_have_the_shapes_of_resnet_18():
    layers = ub.ResidualConv(3, 10, block="basic")
    assert [layers.shape(d).outputs for d in range(1, 11)] == [64] * 3 + [128] * 2 + [256] * 2 + [
        512
    ] * 3
    assert [d for d in range(1, 40) if layers.shape(d).stride == 2] == [4, 6, 8]
    # Depth 9 is ResNet-18: as many weights, and the same function of equal ones.
    other = ResNet18(3, 10).hidden(1)
    mine = nn.Sequential(*(layers.hidden(d) for d in range(1, 10)))
    values = [v for name, v in other.state_dict().items() if "head" not in name]
    assert sum(p.numel() for p in mine.parameters()) == 11_173_962 - 5130
    names = list(mine.state_dict())
    mine.load_state_dict(dict(zip(names, values, strict=True)))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(mine.eval()(x), other.eval()(x))


def test_shapes_of_states_are_those_of_the_layers():
    model = model_of()
    states = model.network.states(images(size=16), model.network.num_layers)
    for depth, hidden in enumerate(states, 1):
        assert hidden.shape[1] == model.layers.shape(depth).outputs
    assert [hidden.shape[2] for hidden in states[:5]] == [16, 8, 4, 4, 2]
    assert model(images(size=16)).shape == (model.network.num_layers, 6, 4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_few_channels_with_a_stride_are_convolved_without_it(layout):
    """The same numbers and gradients; oneDNN's own way aborts on CPUs with AVX2 alone."""
    layer = Pointwise(3, 5, 1, stride=2)
    x = torch.randn(4, 3, 8, 8).to(memory_format=layout).requires_grad_()
    inputs = (x, layer.weight, layer.bias)
    slope = torch.randn(4, 5, 4, 4)
    doubles = [value.detach().double().requires_grad_() for value in inputs]
    expected = F.conv2d(*doubles, stride=2)  # which oneDNN leaves alone
    wanted = torch.autograd.grad(expected, doubles, slope.double())
    torch.testing.assert_close(layer(x), expected.float())
    for one, other in zip(torch.autograd.grad(layer(x), inputs, slope), wanted, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bottleneck", "basic"])
def test_a_new_block_is_the_identity(kind):
    strides = None if kind == "bottleneck" else (1, 2, 2)
    layers = ub.ResidualConv(3, 4, width=4, block=kind, stages=(1, 2), strides=strides)
    block = layers.hidden(4).eval()
    hidden = torch.rand(2, layers.shape(4).inputs, 4, 4)
    assert block.shortcut is None
    assert torch.equal(block(hidden), hidden)
    assert torch.equal(block.train()(hidden), hidden)
    options = {"block": kind, "stages": (1, 2), "strides": strides, "init": "he"}
    other = ub.ResidualConv(3, 4, width=4, **options).hidden(4)
    assert not torch.allclose(other(hidden), hidden)


def test_heads_together_equal_heads_one_by_one():
    model = model_of(init="he")
    nn.init.normal_(model.network.heads["1"].weight)
    for head in model.network.heads.values():
        nn.init.normal_(head.weight)
        nn.init.normal_(head.bias)
    for training in (True, False):
        model.train(training)
        x, last = images(), model.network.num_layers
        together = copy.deepcopy(model).network(x, last)
        hidden, alone = x, []
        for depth in range(1, last + 1):
            hidden = model.network.hidden[str(depth)](hidden)
            mean = hidden.mean((2, 3))
            head = model.network.heads[str(depth)]
            alone.append(F.linear(mean, head.weight, head.bias))
            assert torch.allclose(head(hidden), alone[-1], atol=1e-6)
        assert torch.allclose(together, torch.stack(alone), atol=1e-5)
        below = copy.deepcopy(model).network(x, last, 3)
        assert torch.allclose(below, together[2:], atol=1e-5) or training


def test_the_faster_way_is_asked_at_every_pass():
    """It gives what the modules give one by one, and steps aside where a hook is to be called."""
    model = model_of(init="he").eval()
    for head in model.network.heads.values():
        nn.init.normal_(head.weight)
    x, calls = images(), []
    stack = model.network.stack(model.network.num_layers)
    expected = model.network._one_by_one(stack, x)
    torch.testing.assert_close(model.layers.run(stack, x), expected, rtol=1e-4, atol=1e-5)
    handle = model.network.heads["3"].register_forward_hook(lambda *_: calls.append(3))
    assert model.layers.run(stack, x) is None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert calls == [3]
    handle.remove()
    assert model.layers.run(stack, x) is not None
    head = model.network.heads["2"]
    head.weight = nn.Parameter(torch.zeros_like(head.weight))
    assert (model(x)[1] == head.bias).all()


def test_fixed_depth_is_a_plain_network():
    model = model_of(ub.FixedDepth(4), init="he")
    nn.init.normal_(model.network.heads["4"].weight)
    plain = nn.Sequential(
        *(copy.deepcopy(layer) for layer in model.network.hidden.values()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        copy.deepcopy(model.network.heads["4"]),
    )
    assert list(model.network.heads) == ["4"]
    x, y = images(), torch.arange(6) % 4
    terms = model.elbo(x, y, 6)
    (-terms.expected_log_lik / 6).backward()
    loss = F.cross_entropy(plain(x), y)
    loss.backward()
    assert float(-terms.expected_log_lik.detach() / 6) == pytest.approx(float(loss.detach()))
    ours = [p.grad for p in model.network.parameters()]
    theirs = [p.grad for p in plain.parameters()]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_recomputing_saves_states_and_counts_batches_once():
    def passed(recomputes, norm):
        model = model_of(init="he")
        if norm:  # a user's own layers, with the count of batches that ours leave out
            hidden = {
                d: nn.Sequential(m, nn.BatchNorm2d(m(images(2)).shape[1])) if d == "1" else m
                for d, m in model.network.hidden.items()
            }
            model.network.hidden["1"] = hidden["1"]
        model.network.configure(recomputes=recomputes)
        model.elbo(images(), torch.arange(6) % 4, 6).loss(6).backward()
        return model

    for norm in (False, True):
        plain, again = passed(False, norm), passed(True, norm)
        assert same(state(plain), state(again))  # running statistics among them
        for a, b in zip(plain.parameters(), again.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.allclose(a.grad, b.grad, atol=1e-6)


def test_recomputing_keeps_less():
    kept = []
    for recomputes in (False, True):
        model = model_of(init="he")
        model.network.configure(recomputes=recomputes)
        seen = {}

        def pack(tensor, seen=seen):
            seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.network(images(16), model.network.num_layers)
        kept.append(sum(seen.values()))
    assert kept[1] < 0.5 * kept[0]


def test_compiling_layer_by_layer_compiles_each_shape_once():
    frames = []

    def backend(module, inputs):
        frames.append(module)
        return module.forward

    torch._dynamo.reset()
    model = model_of(ub.TruncatedPoisson(8.0), init="he")
    compiled = []
    for layer in model.network.hidden.values():
        compiled.append(torch.compile(layer.with_pooled, backend=backend, dynamic=False))
    hidden = plain = images()
    for layer, run in zip(model.network.hidden.values(), compiled, strict=True):
        before = copy.deepcopy(layer)
        hidden, mean = run(hidden.detach())
        plain, plain_mean = before.with_pooled(plain)
        assert torch.allclose(hidden, plain, atol=1e-5)
        assert torch.allclose(mean, plain_mean, atol=1e-5)
    # The stem, and in each of the three stages the first block and (but the first) the others.
    assert model.network.num_layers > 10
    assert len(frames) == 6
    torch._dynamo.reset()


def test_pooling():
    state_ = images()
    assert torch.allclose(pooled(state_), state_.mean((2, 3)))
    assert torch.equal(pooled(pooled(state_)), pooled(state_))
    assert pooled(state_.bfloat16()).dtype == torch.float32
    assert pooled(state_.double()).dtype == torch.float64


@pytest.mark.parametrize("block", ["bottleneck", "basic"])
def test_files_rebuild_it(tmp_path, block):
    model = model_of(block=block)
    ub.save(model, tmp_path / "m.udn")
    again = ub.load(tmp_path / "m.udn")
    assert again.layers.config() == model.layers.config()
    model.eval()
    assert torch.equal(again(images()), model(images()))
    frozen, _ = again.freeze()(images())
    assert torch.allclose(frozen, model(images()), atol=1e-6)


def test_errors_say_what_was_expected():
    with pytest.raises(ValueError, match="strides must be one for each stage, 2"):
        ub.ResidualConv(3, 4, stages=(1,), strides=(2,))
    with pytest.raises(ValueError, match="init must be one of"):
        ub.ResidualConv(3, 4, init="zero")
    with pytest.raises(ValueError, match="block must be one of"):
        ub.ResidualConv(3, 4, block="wide")
    with pytest.raises(ValueError, match="width"):
        ub.ResidualConv(3, 4, width=0)
    with pytest.raises(LayerError, match=r"layer 1 could not take what the input gives.*\(6, 2"):
        model_of()(images()[:, :2])


def test_kinds_of_modules():
    layers = ub.ResidualConv(1, 4, width=4)
    assert isinstance(layers.hidden(1), Stem)
    assert isinstance(layers.hidden(2), Bottleneck)
    assert isinstance(layers.head(2), PooledLinear)
    assert not layers.head(2).weight.any()
    assert ub.ResidualConv(1, 4, init="default").head(2).weight.any()
