"""Nothing lost in training: births, memory, extreme rates, interruptions."""

import threading

import pytest
import torch
from torch import nn

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded import growth
from unbounded.layers import CustomLayers

# Births


def grown(seed: int) -> dict[str, torch.Tensor]:
    model = classifier(seed=seed, depth_prior=ub.PoissonDepth(30.0))
    ub.fit(
        model,
        *classes(32),
        epochs=2,
        batch_size=8,
        lr=0.1,
        depth_lr_ratio=2.0,
        progress=False,
    )
    return state(model)


def test_threads_give_the_weights_of_serial_runs():
    """Also while another thread draws from torch's own generator all the time."""
    expected = [grown(seed) for seed in range(40)]
    assert max(len(one) for one in expected) > len(state(classifier()))
    found: dict[int, dict[str, torch.Tensor]] = {}
    over = threading.Event()

    def draw():
        while not over.is_set():
            torch.randn(100)

    def fit(first: int) -> None:
        for seed in range(first, 40, 8):
            found[seed] = grown(seed)

    other = threading.Thread(target=draw)
    threads = [threading.Thread(target=fit, args=(first,)) for first in range(8)]
    other.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    other.join()
    assert [seed for seed in range(40) if not same(found[seed], expected[seed])] == []


class Odd(nn.Module):
    """Draws in many ways; some of torch's functions take no generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        nn.init.orthogonal_(self.linear.weight)
        self.like = nn.Parameter(torch.rand_like(self.linear.weight))
        self.dropped = nn.Parameter(nn.functional.dropout(torch.ones(50)))
        self.gamma = nn.Parameter(torch.distributions.Gamma(2.0, 1.0).sample((5,)))
        self.order = nn.Parameter(torch.randperm(9).double())
        own = torch.Generator().manual_seed(7)
        self.own = nn.Parameter(torch.randn(5, generator=own))


@pytest.mark.parametrize(
    "layers",
    [
        ub.Dense(3, 8, 2, init="he"),
        ub.ResidualDense(3, 8, 2),
        ub.ResidualConv(3, 2, width=4),
        CustomLayers(lambda depth: Odd(), lambda depth: nn.Linear(3, 2)),
    ],
    ids=lambda layers: type(layers).__name__,
)
def test_a_birth_draws_the_numbers_of_a_seeded_generator_and_leaves_torch_s_alone(layers):
    model = classifier(seed=3)
    model.layers = layers
    for role, make in (("hidden", layers.hidden), ("heads", layers.head)):
        torch.manual_seed(growth.birth_seed(3, role, 2))
        expected = make(2).state_dict()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        assert same(growth.create(model, role, 2).state_dict(), expected)
        assert torch.equal(torch.get_rng_state(), before)


def test_families_of_many_threads_have_tables_of_their_size(monkeypatch):
    """A thread that adds a smaller table meanwhile is not taken for ours."""
    from unbounded.depth import rates

    device = torch.device("cpu")
    monkeypatch.setattr(rates, "_VIEWS", {})
    monkeypatch.setattr(rates, "_TABLES", {})
    rates._counts(100, device)
    small = torch.arange(64, dtype=torch.float64)
    rates._TABLES[device].append((small, torch.lgamma(small + 1)))
    assert rates._counts(90, device)[0].shape == (90,)
