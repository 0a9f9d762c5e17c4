"""The figures of the core: epoch, step, depth and import, each as a ratio."""

import subprocess
import sys
import time
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import unbounded as ub
from benchmarks.plain_loop import plain_epoch, plain_setup
from benchmarks.timing import best_times, run_epoch, trainer_of
from unbounded.data import spiral
from unbounded.depth import FiniteDepth, TruncatedPoisson
from unbounded.engines import Eager, Stacked
from unbounded.priors import UniformDepth


class Figure(NamedTuple):
    name: str
    ours: float
    reference: float
    ratio: float
    target: str
    holds: bool


def spiral_epoch() -> Figure:
    """One epoch of the paper's spiral setting at 6 active depths: train, validation, test."""
    sets = [spiral(10.0, part=part) for part in ("train", "validation", "test")]
    rate = 2.5  # m = 6 for λ between 2.0 and 2.6
    torch.manual_seed(0)
    plain, loaders = plain_setup(sets, rate, 0.0)
    model = ub.UDN(ub.Dense(2, 32, 2), ub.Categorical(2), depth=TruncatedPoisson(rate))
    assert model.depth.max_depth() == plain.max_depth() == 6
    scored = {"val": sets[1], "test": sets[2]}
    # The depth stays at 6 for both.
    trainer = trainer_of(model, sets[0], Eager(), scored, depth_lr_ratio=0.0)

    def ours() -> None:
        for _ in range(5):
            run_epoch(trainer)

    def reference() -> None:
        for _ in range(2):
            plain_epoch(plain, *loaders)

    fast, slow = best_times([ours, reference])
    fast, slow = fast / 5, slow / 2
    return Figure(
        "spiral epoch, plain loop ÷ ours", fast, slow, slow / fast, "≥ 5", slow >= 5 * fast
    )


def step_ratio(width: int = 256, batch: int = 256, depth: int = 10) -> Figure:
    """A training step of a UDN with m = 10 against a finite plain network of 10 layers."""
    x, y = torch.randn(batch, width), torch.randint(0, 10, (batch,))
    rate = 5.0  # m = 10
    model = ub.UDN(
        ub.Dense(width, width, 10), ub.Categorical(10), depth=TruncatedPoisson(rate)
    ).train()
    assert model.depth.max_depth() == depth
    optimizer = ub.make_optimizer(model, lr=1e-4, depth_lr_ratio=0.0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    plain = nn.Sequential(*layers, nn.Linear(width, 10))
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4, fused=True)

    def ours() -> None:
        for _ in range(10):
            ub.step(model, optimizer, x, y, num_data=50_000)

    def reference() -> None:
        for _ in range(10):
            plain_optimizer.zero_grad()
            loss = F.cross_entropy(plain(x), y)
            loss.item()  # every training loop looks at its loss
            loss.backward()
            plain_optimizer.step()

    udn, finite = (t / 10 for t in best_times([ours, reference], rounds=9))
    return Figure(
        f"UDN step ÷ finite step, depth {depth}",
        udn,
        finite,
        udn / finite,
        "≤ 1.25",
        udn <= 1.25 * finite,
    )


def depth_scaling() -> Figure:
    """Steps at m = 400 against m = 100: linear in depth."""

    def stepper(depth: int):  # type: ignore[no-untyped-def]
        low, high = 1.0, 2.0 * depth
        for _ in range(60):  # the rate whose support ends at `depth`
            middle = (low + high) / 2
            if TruncatedPoisson(middle).max_depth() < depth:
                low = middle
            else:
                high = middle
        model = ub.UDN(
            ub.Dense(2, 32, 2, init="he"), ub.Categorical(2), depth=TruncatedPoisson(high)
        )
        assert model.depth.max_depth() == depth
        optimizer = ub.make_optimizer(model, lr=1e-4, depth_lr_ratio=0.0)
        x, y = spiral(10.0, 256)
        return lambda: ub.step(model.train(), optimizer, x, y, num_data=1024)

    deep, shallow = best_times([stepper(400), stepper(100)], rounds=9)
    return Figure(
        "step at m = 400 ÷ step at m = 100",
        deep,
        shallow,
        deep / shallow,
        "≤ 4.4",
        deep <= 4.4 * shallow,
    )


def pre_norm_population(members: int = 16, depth: int = 12) -> Figure:
    """An epoch of four steps of many pre-norm networks against as many plain ones."""

    def epoch(kind: type[ub.Dense]):  # type: ignore[no-untyped-def]
        models = [
            ub.UDN(
                kind(2, 32, 2),
                ub.Categorical(2),
                FiniteDepth(depth),
                UniformDepth(depth),
                seed=seed,
            )
            for seed in range(members)
        ]
        trainer = trainer_of(models, spiral(10.0, 1024), Stacked())
        return lambda: run_epoch(trainer)

    pre_norm, plain = best_times([epoch(ub.PreNormDense), epoch(ub.Dense)], rounds=9)
    return Figure(
        f"{members} pre-norm ÷ {members} plain, depth {depth}",
        pre_norm,
        plain,
        pre_norm / plain,
        "≤ 1.75",
        pre_norm <= 1.75 * plain,
    )


def very_deep() -> Figure:
    """A rate of 2000 trains (m = 2075), without a warning."""
    x, y = spiral(10.0, 512)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ub.UDN(
            ub.Dense(2, 32, 2, init="he"), ub.Categorical(2), depth=TruncatedPoisson(2000.0)
        )
        depth = model.depth.max_depth()
        start = time.perf_counter()
        result = ub.fit(model, x, y, epochs=1, batch_size=256, progress=False)
        seconds = time.perf_counter() - start
    finite = all(torch.isfinite(p).all() for p in model.parameters())
    return Figure(
        f"rate 2000: m = {depth}, two steps",
        seconds,
        float("nan"),
        float(depth),
        "trains",
        finite and len(result.history) == 1 and 2050 < depth < 2100,
    )


def import_time() -> Figure:
    """`import unbounded` against `import torch`, each in a fresh interpreter."""

    def run(module: str):  # type: ignore[no-untyped-def]
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    ours, reference = best_times([run("unbounded"), run("torch")], rounds=7)
    return Figure(
        "import unbounded ÷ import torch",
        ours,
        reference,
        ours / reference,
        "≤ 1.1",
        ours <= 1.1 * reference,
    )


FIGURES = (
    spiral_epoch,
    step_ratio,
    depth_scaling,
    pre_norm_population,
    very_deep,
    import_time,
)
