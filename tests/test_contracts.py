"""Every family, prior, likelihood, generator and engine passes its contract suite."""

import pytest
import torch
from torch import nn

import unbounded as ub
from unbounded import testing
from unbounded.baselines.dun import DUNLayers, SharedHeadConv
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.layers import Whitened, whitening_filters
from unbounded.likelihoods import FixedNoise, InputNoise, LearntNoise
from unbounded.priors import WeightPrior

FAMILIES = {
    "poisson": lambda: ub.TruncatedPoisson(1.5),
    "poisson with a limit": lambda: ub.TruncatedPoisson(5.0, limit=4),
    "concentrated": lambda: ub.TruncatedConwayMaxwell(3.0),
    "spread": lambda: ub.TruncatedConwayMaxwell(1.0, concentration=0.5),
    "normal": lambda: ub.TruncatedNormal(2.3, 1.1),
    "narrow": lambda: ub.TruncatedNormal(3.0, 0.3),
    "normal with a limit": lambda: ub.TruncatedNormal(5.0, 2.0, limit=4),
    "fixed": lambda: ub.FixedDepth(3),
    "finite": lambda: ub.FiniteDepth(3),
}
NUMBERS = torch.linspace(-2, 2, 24).sin()
LIKELIHOODS = {
    "categorical": (lambda: ub.Categorical(3), torch.arange(24) % 3, 3),
    "bernoulli": (lambda: ub.Bernoulli(), torch.arange(24) % 2, None),
    "labels": (
        lambda: ub.MultiLabel(2),
        torch.stack([torch.arange(24) % 2, torch.arange(24) % 3 // 2], 1),
        2,
    ),
    "learnt noise": (lambda: ub.Gaussian(LearntNoise()), NUMBERS, None),
    "fixed noise": (lambda: ub.Gaussian(FixedNoise(0.5)), NUMBERS, None),
    "input noise": (lambda: ub.Gaussian(InputNoise()), NUMBERS, None),
    "two targets": (
        lambda: ub.Gaussian(LearntNoise(num_targets=2)),
        torch.stack([NUMBERS, -NUMBERS], 1),
        2,
    ),
}
ROWS = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "dense": (lambda: ub.Dense(2, 6, 2), ROWS),
    "gelu": (lambda: ub.Dense(2, 6, 2, activation="gelu"), ROWS),
    "shared head": (lambda: ub.Dense(2, 6, 2, shares_head=True), ROWS),
    "residual": (lambda: ub.ResidualDense(2, 6, 2), ROWS),
    "pre-norm": (lambda: ub.PreNormDense(2, 6, 2), ROWS),
    "tables": (lambda: ub.TableDense(2, 6, 2, embedded=[1]), ROWS),
    "convolutional": (lambda: ub.ResidualConv(3, 2, width=4, stages=(1, 1)), IMAGES),
    "whitened": (
        lambda: Whitened(
            ub.ResidualConv(27, 2, width=4, stages=(1, 1)), whitening_filters(IMAGES, 3)
        ),
        IMAGES,
    ),
    "DUN": (lambda: DUNLayers(2, 6, 2), ROWS),
    "DUN of images": (lambda: SharedHeadConv(3, 2, width=4, stages=(1, 1)), IMAGES),
    "custom": (lambda: ub.CustomLayers(hidden_of_width, linear_head), ROWS),
}


def hidden_of_width(depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2 if depth == 1 else 6, 6), nn.Tanh())


def linear_head(depth: int) -> nn.Module:
    return nn.Linear(6, 2)


class LaplaceWeights(WeightPrior):
    """|θ|: its gradient is left to autograd."""

    def kl(self, parameters):
        return torch.stack([p.abs().sum() for p in parameters])


@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_families(make):
    testing.check_family(make)


@pytest.mark.parametrize(
    "make", [lambda: ub.PoissonDepth(), lambda: ub.GeometricDepth(0.2), lambda: ub.UniformDepth(4)]
)
def test_depth_priors(make):
    testing.check_depth_prior(make)


@pytest.mark.parametrize(
    "make",
    [lambda: ub.GaussianWeights(0.5), lambda: ub.GaussianWeights(0.5, 0.1), LaplaceWeights],
)
def test_weight_priors(make):
    testing.check_weight_prior(make)


@pytest.mark.parametrize(("make", "y", "size"), LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_likelihoods(make, y, size):
    testing.check_likelihood(make, y, num_outputs=size)


@pytest.mark.parametrize(("make", "x"), LAYERS.values(), ids=LAYERS)
def test_layers(make, x):
    testing.check_layers(make, x)


@pytest.mark.parametrize(
    "make", [Eager, lambda: Graphs(lag=0), Stacked], ids=["eager", "graphs", "stacked"]
)
def test_engines(make):
    testing.check_engine(make)


class Geometric(ub.DepthFamily):
    """Its mode is always depth 1."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5))

    def scores(self, at, size):
        return -torch.arange(size) * at["rate"].double().exp()[..., None]

    def end(self, at, size):
        return (2 + 3 / at["rate"].exp()).long()


class OneTooMany(ub.TruncatedPoisson):
    """Says that it ends where it does not."""

    def end(self, at, size):
        return super().end(at, size).clamp(max=2) if at["raw_rate"].dim() else super().end(at, size)


class Transposed(ub.Gaussian):
    """Its log_prob has the wrong shape."""

    def log_prob(self, outputs, y):
        return super().log_prob(outputs, y).t()


class Doubled(ub.GaussianWeights):
    """Promises another gradient than its KL has."""

    def kl(self, parameters):
        return 2 * super().kl(parameters)


class Restless(ub.Dense):
    """Its first weights do not depend on the seed and the depth alone."""

    count = 0

    def hidden(self, depth):
        layer = super().hidden(depth)
        Restless.count += 1
        with torch.no_grad():
            layer.bias.add_(Restless.count)
        return layer


class Hasty(ub.Dense):
    """Its faster way is not the plain one."""

    def run(self, stack, x):
        if any(head._forward_hooks for head in stack.heads):
            return None
        return torch.stack([head(h) + 1 for head, h in zip(stack.heads, stack.states(x))])  # noqa: B905


class Unnormalised(ub.PoissonDepth):
    def log_prob(self, depth):
        return super().log_prob(depth) + 0.1


class Lazy(Eager):
    """Skips the last batch of an epoch."""

    def begin_epoch(self, epoch):
        super().begin_epoch(epoch)
        for member in self.members:
            batches = list(member.iterator)
            member.iterator = iter(batches[:-1])


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: testing.check_family(Geometric), "Definition 1"),
        (lambda: testing.check_family(lambda: OneTooMany(3.0)), "end takes leading axes"),
        (lambda: testing.check_likelihood(Transposed, NUMBERS), "Transposed must give"),
        (lambda: testing.check_weight_prior(Doubled), "precision"),
        (lambda: testing.check_layers(lambda: Restless(2, 6, 2), ROWS), "the seed alone"),
        (lambda: testing.check_layers(lambda: Hasty(2, 6, 2), ROWS), "faster way"),
        (lambda: testing.check_depth_prior(Unnormalised), "sums to one"),
        (lambda: testing.check_engine(Lazy), "lone model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_suites_notice(check, says):
    with pytest.raises((AssertionError, ValueError), match=says):
        check()
