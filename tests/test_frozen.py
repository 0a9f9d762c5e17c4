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


def test_frozen_exports():
    x, _ = classes(5)
    frozen = classifier(TruncatedPoisson(2.0)).freeze()
    batch = torch.export.Dim("batch", min=2, max=1000)
    program = torch.export.export(frozen, (x,), dynamic_shapes={"x": {0: batch}})
    more, _ = classes(17)
    torch.testing.assert_close(program.module()(more)[0], frozen(more)[0])


def test_frozen_loads_into_plain_torch():
    """The state dict of a frozen model is that of ordinary linear layers."""
    x, _ = classes(5)
    frozen = classifier(FixedDepth(2)).freeze()
    plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    values = {k: v for k, v in frozen.state_dict().items() if k != "depth_probs"}
    plain.load_state_dict(dict(zip(plain.state_dict(), values.values(), strict=True)))
    torch.testing.assert_close(plain(x), frozen(x)[0][0])
