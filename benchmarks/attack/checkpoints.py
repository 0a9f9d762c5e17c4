"""Checkpoints that somebody has changed: runs that write some, a mutator, and who tries them."""

import copy
import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.optim import lr_scheduler

import unbounded as ub
from unbounded.engines import Graphs
from unbounded.files import FileError, read_tensors, write_tensors
from unbounded.steps.depth_rules import RateAscent
from unbounded.steps.step import NonFiniteError

ROWS = 24
HOSTILE = [
    *(None, True, False, 0, 1, -1, 2, 7, 1_000_000, 2**31, 2**63, 10**30, -(2**40)),
    *(0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *("", "x", "Adam", "../../etc", "9" * 400, [], [[]], [1], [None], {}, {"a": 1}),
    *([0] * 625, [-1] * 624, [[1, 2], [3, 4]], {"pairs of a": "counter", "items": [1]}),
]


def data(seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def model(depth=None, seed=3, layers=None, prior=None):
    layers = ub.Dense(2, 4, 2) if layers is None else layers
    prior = ub.PoissonDepth(4.0) if prior is None else prior
    return ub.UDN(layers, ub.Categorical(2), depth, prior, seed=seed)


def _run(models, **options):
    usual = {"batch_size": 12, "lr": 0.05, "progress": False, "validation": data(9)}
    return models, {"x": data(), **usual, **options}


def _limited():
    # SGD takes λ as far as hostile weights push it: what births cost is not at issue here.
    return ub.TruncatedPoisson(1.0, limit=20)


def _built():
    one = model(_limited())
    kind = partial(ub.make_optimizer, one, torch.optim.SGD, lr=0.05, momentum=0.9)
    cycle = partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=40)
    return _run(one, optimizer=kind(), scheduler=cycle, schedule_every="step")


def _chained(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 9)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


def _population(**options):
    return _run([model(seed=s) for s in range(3)], **options)


RUNS = {
    "eager": lambda: _run(model(), patience=5, depth_lr_ratio=3.0),
    "eager-onecycle": _built,
    "eager-plateau": lambda: _run(
        model(ub.TruncatedConwayMaxwell(2.0)),
        scheduler=partial(lr_scheduler.ReduceLROnPlateau, patience=1),
        optimizer=torch.optim.NAdam,
    ),
    "eager-sequence": lambda: _run(model(), scheduler=_chained, average=0.9),
    "eager-rule": lambda: _run(model(), depth_rule=RateAscent(0.05, memory=4), average=0.8),
    "eager-many": lambda: _population(engine=ub.engines.Eager()),
    "graphs": lambda: _run(model(), engine=Graphs(), depth_rule=RateAscent(0.05, memory=4)),
    "stacked": lambda: _population(lr=[0.01, 0.02, 0.05], patience=5),
    "stacked-average": lambda: _population(average=0.9, depth_lr_ratio=3.0, validation=None),
    "stacked-sgd": lambda: _run(
        [model(_limited(), seed=0), model(ub.FiniteDepth(3), seed=1)],
        x=[data(0), data(1, 18)],
        optimizer=partial(torch.optim.SGD, momentum=0.9),
    ),
}
"""By name, what gives a run's models and arguments, anew each time."""


def fit(run, *, models=None, **options):
    """A run by its name, with further arguments."""
    found, usual = RUNS[run]() if isinstance(run, str) else run
    return ub.fit(found if models is None else models, **{**usual, **options})


def write(run, path, epochs=2):
    """Its checkpoint after some epochs."""
    fit(run, epochs=epochs, checkpoint=path)


# Mutations ---------------------------------------------------------------------------------------


def mutate(source, target, rng):
    """Write a changed copy of a checkpoint; returns what was done, in words."""
    kind = rng.choice(["bytes", "header", "header", "header", "tensor", "tensor"])
    if kind == "bytes":
        return _bytes(source, target, rng)
    tensors, metadata = read_tensors(source)
    metadata = {"unbounded": metadata["unbounded"]}
    if kind == "tensor":
        words = _tensor(tensors, rng)
    else:
        header = json.loads(metadata["unbounded"])
        words = _plain(header, rng)
        metadata["unbounded"] = json.dumps(header)
    write_tensors(target, tensors, metadata)
    return words


def _bytes(source, target, rng):
    whole = bytearray(Path(source).read_bytes())
    if rng.random() < 0.2:
        size = rng.randrange(len(whole))
        Path(target).write_bytes(whole[:size])
        return f"cut at byte {size}"
    places = [rng.randrange(len(whole)) for _ in range(rng.choice([1, 1, 4]))]
    for place in places:
        whole[place] ^= 1 << rng.randrange(8)
    Path(target).write_bytes(whole)
    return f"bits flipped in bytes {places}"


def _plain(header, rng):
    """One field somewhere in the header: another value, gone, doubled or new."""
    holder, path = header, []
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = rng.choice(keys)
        path.append(str(key))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            break
        holder = inner
    action = rng.choice(["set", "set", "set", "set", "gone", "new"])
    where = ".".join(path)
    if action == "gone":
        del holder[key]
        return f"{where} gone"
    if action == "new":
        if isinstance(holder, dict):
            holder[f"{key}x"] = copy.deepcopy(inner)
        else:
            holder.append(copy.deepcopy(inner))
        return f"{where} twice"
    value = copy.deepcopy(rng.choice(HOSTILE))
    if rng.random() < 0.2 and isinstance(inner, int | float) and not isinstance(inner, bool):
        value = rng.choice([-inner, inner + 1, inner * 1e6, float(inner)])
    holder[key] = value
    return f"{where} = {str(value)[:40]}"


def _tensor(tensors, rng):
    """One tensor: gone, renamed, of another shape or dtype, with other numbers, or one more."""
    name = rng.choice(sorted(tensors))
    old = tensors[name]
    actions = {
        "flat": lambda: old.reshape(-1),
        "longer": lambda: old[None],
        "doubled": lambda: torch.cat([old.reshape(-1), old.reshape(-1)]),
        "empty": lambda: old.new_zeros(0),
        "empty and long": lambda: old.new_zeros(0, 1_000_000),
        "shorter": lambda: old.reshape(-1)[:-1],
        "double": lambda: old.double(),
        "single": lambda: old.float(),
        "whole": lambda: torch.zeros_like(old, dtype=torch.long),
        "bytes": lambda: torch.zeros_like(old, dtype=torch.uint8),
        "NaN": lambda: torch.full_like(old.float(), float("nan")).to(old.dtype),
        "huge": lambda: torch.full_like(old.float(), 1e30).to(old.dtype),
        "large": lambda: torch.full_like(old.float(), 1e5).to(old.dtype),
        "negative": lambda: -old.abs() - 1 if old.is_floating_point() else old.bitwise_not(),
        "ones": lambda: torch.ones_like(old),
        "noise": lambda: torch.randint(0, 256, old.shape).to(old.dtype),
    }
    action = rng.choice([*actions, "gone", "gone", "renamed", "copied", "swapped", "deep"])
    if action in actions:
        tensors[name] = actions[action]()
    elif action in ("gone", "renamed", "copied"):
        if action != "copied":
            del tensors[name]
        if action != "gone":
            tensors[name + rng.choice(["x", ".x", ".1"])] = old
    elif action == "swapped":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], old
        action += f" with {other}"
    else:
        tensors[f"engine.0.model.network.hidden.{rng.choice([9, 10**9])}.weight"] = old
    return f"{name} {action}"


# Attempts ----------------------------------------------------------------------------------------


def everything(run):
    """Copies of all that a caller can see of a run: models, optimiser, random numbers."""
    found, options = run
    models = found if isinstance(found, list) else [found]
    optimizer = options.get("optimizer")
    kept = [copy.deepcopy(m.state_dict()) for m in models]
    kept += [[m.network.num_layers, m.training] for m in models]
    kept += [[p.grad for p in m.parameters()] for m in models]
    if hasattr(optimizer, "param_groups"):
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        sizes = [len(g["params"]) for g in optimizer.param_groups]
        kept += [copy.deepcopy([groups, sizes, list(optimizer.state.values())])]
    kept += [torch.get_rng_state(), random.getstate(), np.random.get_state()]  # noqa: NPY002
    return kept


def equal(one, other):
    """Bit for bit, in nested containers."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def attempt(name, path, epochs=3):
    """Resume a run from a file: "refused", "resumed" or "diverged"; all else is raised."""
    run = RUNS[name]()
    before = everything(run)
    try:
        fit(run, epochs=epochs, checkpoint=path, resume=True)
    except FileError as error:
        words = str(error)
        if not words.startswith(str(path)) or "\n" in words:
            raise AssertionError(f"not a line that names the file: {words}") from error
        if not equal(before, everything(run)):
            raise AssertionError(f"something was touched before: {words}") from error
        return "refused"
    except NonFiniteError:
        return "diverged"
    return "resumed"
