"""Does this machine train many models as it should? `python -m tests.gpu.selfcheck`.

Compares CUDA graphs with the same kernels launched one by one, two runs with each other, and
members with models that `unbounded.fit` trains alone on the CPU; then times the models of
the spiral study. Prints one line a check and exits with 1 if one fails. Without a CUDA device
(`--device cpu`) the comparison of graphs is left out.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from unbounded.baselines import DUNLayers
from unbounded.data import spiral
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedPoisson
from unbounded.engines import Stacked
from unbounded.layers import Dense, Layers, PreNormDense
from unbounded.likelihoods import Categorical
from unbounded.model import UDN
from unbounded.priors import PoissonDepth, UniformDepth
from unbounded.training import Callback, fit

# λ rises from 1 within a few epochs: layers are born and graphs captured anew.
_RISING = PoissonDepth(12.0)
_EPOCHS = 20


def main(arguments: list[str] | None = None) -> int:
    """Run all checks; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--epochs", type=int, default=20, help="of the timed populations")
    parser.add_argument("--members", type=int, default=85, help="UDNs in the timed population")
    options = parser.parse_args(arguments)
    if options.epochs < 4:
        parser.error(f"--epochs must be at least 4, got {options.epochs}")
    device = torch.device(options.device)
    print(f"torch {torch.__version__} on {_name(device)}")
    good = True
    for title, check in (
        ("dense, mixed families", lambda: _mixed(torch.float64)),
        ("dense, shared head", lambda: _shared(torch.float64)),
        ("pre-norm, mixed families", lambda: _mixed(torch.float64, PreNormDense)),
        ("pre-norm, one family", lambda: _mixed(torch.float64, PreNormDense)[:3]),
        ("batch norm by vmap", lambda: _batch_norm(torch.float64)),
        ("dense, single precision", lambda: _mixed(torch.float32)),
    ):
        good &= _compare(title, check, device)
    for title, models in (
        ("UDN", [_udn(seed) for seed in range(options.members)]),
        ("Ω_1 … Ω_10", [_omega(i % 10 + 1, i) for i in range(10 * options.members)]),
        ("DUN-10", [_dun(seed) for seed in range(options.members)]),
    ):
        _time(title, models, device, options.epochs)
    print("all checks passed" if good else "a check FAILED")
    return 0 if good else 1


def _compare(title: str, make: Callable[[], list[UDN]], device: torch.device) -> bool:
    """Graphs against eager, twice the same, many models against lone ones."""
    good = True
    start = time.perf_counter()
    models, depth, captured = _train(make(), device, None)
    double = models[0].anchor.dtype == torch.float64
    if device.type == "cuda":
        eager, _, _ = _train(make(), device, False)
        limit = 1e-9 if double else 1e-5  # captured products may add up in another order
        good &= _say(f"{title}: graphs = eager ({captured} captured)", _gap(models, eager), limit)
    again, _, _ = _train(make(), device, None)
    good &= _say(f"{title}: two runs agree", _gap(models, again), 0.0)
    lone = make()
    births = 0
    for index, model in enumerate(lone):
        result = fit(
            model,
            *_data(index),
            validation=_data(index, "validation"),
            epochs=_EPOCHS,
            batch_size=64,
            depth_lr_ratio=10.0,
            progress=False,
        )
        births += len(result.history.births)
    # Rounding grows along training, and single precision decides ties between epochs otherwise.
    tolerance = 1e-5 if double else 1.0
    words = f"{title}: members = lone models ({births} births, {depth} layers)"
    good &= _say(words, _gap(models, lone), tolerance)
    print(f"    {time.perf_counter() - start:.1f} s")
    return good


def _train(
    models: list[UDN], device: torch.device, graphs: bool | None
) -> tuple[list[UDN], int, int]:
    engine = Stacked(device=device, graphs=graphs)
    fit(
        models,
        [_data(index) for index in range(len(models))],
        validation=[_data(index, "validation") for index in range(len(models))],
        epochs=_EPOCHS,
        batch_size=64,
        depth_lr_ratio=10.0,
        engine=engine,
        progress=False,
    )
    return models, engine.work.depth, engine.captured


def _time(title: str, models: list[UDN], device: torch.device, epochs: int) -> None:
    """Milliseconds an epoch of the study's size, and what 4000 of them take."""
    data = [spiral(10, seed=index % 85) for index in range(85)]
    held_out = [spiral(10, seed=index % 85, part="validation") for index in range(85)]
    marks: list[float] = []

    class Mark(Callback):
        def on_epoch_end(self, trainer, row):
            marks.append(time.perf_counter())

    fit(
        models,
        [data[index % 85] for index in range(len(models))],
        validation=[held_out[index % 85] for index in range(len(models))],
        epochs=epochs,
        engine=Stacked(device=device),
        progress=False,
        history_every=epochs,
        callbacks=[Mark()],
    )
    half = len(marks) // 2 - 1  # graphs are captured in the first epochs
    each = (marks[-1] - marks[half]) / (len(marks) - 1 - half)
    memory = ""
    if device.type == "cuda":
        memory = f", {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB at most"
        torch.cuda.reset_peak_memory_stats(device)
    print(
        f"{title}, {len(models)} members: {1e3 * each:.2f} ms an epoch, "
        f"{4000 * each:.0f} s for 4000{memory}"
    )


def _say(words: str, gap: float, tolerance: float) -> bool:
    good = gap <= tolerance
    print(f"{'ok  ' if good else 'FAIL'} {words}: largest difference {gap:.2g} (≤ {tolerance:g})")
    return good


def _gap(ones: list[UDN], others: list[UDN]) -> float:
    """The largest difference of any parameter; infinite if layers are missing."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        mine, theirs = one.state_dict(), other.state_dict()
        if mine.keys() != theirs.keys():
            return float("inf")
        for name, tensor in mine.items():
            if tensor.is_floating_point():
                difference = (tensor.double() - theirs[name].double()).abs().max()
                worst = max(worst, float(difference))
    return worst


def _data(index: int, part: str = "train") -> tuple[Tensor, Tensor]:
    return spiral(2 + index, 300, seed=index, part=part)


def _udn(seed: int, layers: Layers | None = None) -> UDN:
    return UDN(
        Dense(2, 32, 2) if layers is None else layers,
        Categorical(2),
        TruncatedPoisson(6.0 if layers is None else 1.0),
        None if layers is None else _RISING,
        seed=seed,
    )


def _omega(depth: int, seed: int) -> UDN:
    return UDN(Dense(2, 32, 2), Categorical(2), FixedDepth(depth), seed=seed)


def _dun(seed: int) -> UDN:
    layers = Dense(2, 32, 2, shares_head=True)
    return UDN(layers, Categorical(2), FiniteDepth(10), UniformDepth(10), seed=seed)


def _mixed(dtype: torch.dtype, kind: type[Dense] = Dense) -> list[UDN]:
    layers = kind(2, 16, 2, init="he")
    models = [_udn(seed, layers) for seed in range(3)]
    models += [UDN(layers, Categorical(2), FixedDepth(k), seed=k) for k in (2, 5)]
    models.append(UDN(layers, Categorical(2), FiniteDepth(4), UniformDepth(4), seed=9))
    return [model.to(dtype) for model in models]


def _shared(dtype: torch.dtype) -> list[UDN]:
    layers = Dense(2, 16, 2, init="he", shares_head=True)
    return [_udn(seed, layers).to(dtype) for seed in range(3)]


def _batch_norm(dtype: torch.dtype) -> list[UDN]:
    layers = DUNLayers(2, 16, 2)
    return [_udn(seed, layers).to(dtype) for seed in range(2)]


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    sys.exit(main())
