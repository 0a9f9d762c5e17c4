"""Frozen models: plain, finite, exportable."""

import pytest
import torch
from torch import nn

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded.depth import FixedDepth, TruncatedPoisson


@pytest.mark.parametrize("shares_head", [False, True])
@pytest.mark.parametrize("depth", [TruncatedPoisson(2.0), FixedDepth(3)], ids=["tp", "fixed"])
def test_frozen_gives_the_same_mixture(depth, shares_head):
    x, _ = classes(10)
    model = ub.UDN(ub.Dense(3, 6, 2, shares_head=shares_head), ub.Categorical(2), depth)
    frozen = model.freeze()
    outputs, q = frozen(x)
    prediction = model.predict(x)
    torch.testing.assert_close(outputs, prediction.outputs)
    torch.testing.assert_close((q[:, None, None] * outputs.softmax(-1)).sum(0), prediction.probs)
    assert all(not p.requires_grad for p in frozen.parameters())


def test_frozen_is_a_copy():
    x, y = classes(32)
    model = classifier()
    frozen = model.freeze()
    before = state(frozen)
    ub.fit(model, x, y, epochs=3, batch_size=16, lr=0.1, progress=False)
    assert same(before, state(frozen))


@pytest.mark.parametrize("shares_head", [False, True])
def test_a_frozen_depth_is_a_plain_network(shares_head):
    x, _ = classes(10)
    family = TruncatedPoisson(2.0)
    model = ub.UDN(ub.Dense(3, 6, 2, shares_head=shares_head), ub.Categorical(2), family)
    whole = model.freeze()(x)[0]
    for depth in range(1, model.support()[1] + 1):
        frozen = model.freeze(depth=depth)
        outputs, q = frozen(x)
        assert len(frozen.hidden) == depth
        assert len(frozen.heads) == 1
        assert q.tolist() == [1.0]
        torch.testing.assert_close(outputs[0], whole[depth - 1])
    born = model.network.num_layers
    for depth in (0, born + 1, 1.5, True):
        with pytest.raises(ValueError, match="one of the layers that are born"):
            model.freeze(depth=depth)
    with pytest.raises(ValueError, match="not both"):
        model.freeze(depth=1, min_mass=0.1)


def test_a_depth_without_a_head_is_told():
    with pytest.raises(ValueError, match=r"depth 1 has no head: .*\(3\)"):
        ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), FixedDepth(3)).freeze(depth=1)


def test_depths_with_little_mass_are_left_out():
    x, _ = classes(10)
    model = ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), TruncatedPoisson(3.0))
    outputs, q = model.freeze()(x)
    least = float(q.sort().values[-3:-1].mean())  # between the second and the third
    kept = q >= least
    fewer, renormalised = model.freeze(min_mass=least)(x)
    assert int(kept.sum()) == 2
    torch.testing.assert_close(fewer, outputs[kept])
    torch.testing.assert_close(renormalised, q[kept] / q[kept].sum())
    last = int(kept.nonzero()[-1]) + 1
    assert len(model.freeze(min_mass=least).hidden) == last < len(q)
    same_as_whole = model.freeze(min_mass=0.0)(x)
    torch.testing.assert_close(same_as_whole, (outputs, q))
    with pytest.raises(
        ValueError, match=r"no depth has a mass of 0.9: the largest is .*, of depth"
    ):
        model.freeze(min_mass=0.9)
    with pytest.raises(ValueError, match="from 0 to 1"):
        model.freeze(min_mass=float("nan"))


def test_a_depth_between_two_that_stay_counts_for_nothing():
    x, _ = classes(10)
    family = ub.FiniteDepth(3)
    with torch.no_grad():
        family.logits.copy_(torch.tensor([0.5, 0.1, 0.4]).log())
    model = ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), family, ub.UniformDepth(3))
    frozen = model.freeze(min_mass=0.2)
    outputs, q = frozen(x)
    torch.testing.assert_close(q, torch.tensor([5 / 9, 0, 4 / 9]))
    mixed = ub.Categorical(2).predict(outputs, q.log()).probs
    alone = outputs.softmax(-1)
    torch.testing.assert_close(mixed, (5 * alone[0] + 4 * alone[2]) / 9)


def test_frozen_exports():
    x, _ = classes(5)
    frozen = classifier(TruncatedPoisson(2.0)).freeze()
    batch = torch.export.Dim("batch", min=2, max=1000)
    program = torch.export.export(frozen, (x,), dynamic_shapes={"x": {0: batch}})
    more, _ = classes(17)
    torch.testing.assert_close(program.module()(more)[0], frozen(more)[0])


def traceable():
    x, more = torch.randn(4, 3), torch.randn(7, 3)
    family = ub.TruncatedNormal(2.0, 0.6)
    yield ub.UDN(ub.PreNormDense(3, 8, 2), ub.Categorical(2), family), x, more
    yield ub.UDN(ub.TableDense(3, 8, 1), ub.Gaussian(), family), x, more
    members = ub.Members(ub.Categorical(2), 2)
    yield ub.UDN(ub.TrunkDense(3, 8, 2, members=2), members, family), x, more
    images = torch.randn(4, 1, 8, 8), torch.randn(7, 1, 12, 12)
    yield ub.UDN(ub.ResidualConv(1, 2, width=4), ub.Categorical(2), family), *images
    tokens = torch.randint(5, (4, 6)), torch.randint(5, (7, 9))
    yield ub.UDN(ub.TransformerLayers(5, 8, heads=2), ub.Tokens(5), family), *tokens


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
def test_torchscript(tmp_path):
    """Saved and read again, for inputs of another size, and inside of a script."""

    class Mixed(nn.Module):
        def __init__(self, traced):
            super().__init__()
            self.traced = traced

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs, q = self.traced(x)
            return (outputs * q.view([-1] + [1] * (outputs.dim() - 1))).sum(0)

    for model, x, more in traceable():
        with torch.no_grad():
            for parameter in model.network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        frozen = model.freeze()
        traced = torch.jit.trace(frozen, (x,))
        torch.jit.save(torch.jit.script(Mixed(traced)), tmp_path / "m.pt")
        found = torch.jit.load(tmp_path / "m.pt")(more)
        torch.testing.assert_close(found, Mixed(frozen)(more))
    with pytest.raises(TypeError, match=r"torch.jit.trace\(frozen, \(x,\)\)"):
        torch.jit.script(frozen)


def test_frozen_loads_into_plain_torch():
    """The state dict of a frozen model is that of ordinary linear layers."""
    x, _ = classes(5)
    frozen = classifier(FixedDepth(2)).freeze()
    plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    values = {k: v for k, v in frozen.state_dict().items() if k != "depth_probs"}
    plain.load_state_dict(dict(zip(plain.state_dict(), values.values(), strict=True)))
    torch.testing.assert_close(plain(x), frozen(x)[0][0])
