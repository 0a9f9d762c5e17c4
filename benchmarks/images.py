"""Epochs on images: finite networks and UDNs of the same depth, as CUDA graphs.

    python -m benchmarks.images [--depths 10 21] [--epochs 3] [--profile]

Trains the convolutional generator in bf16 on random images of CIFAR-10's size and prints, for each
depth, seconds for a training epoch of 50,000 images (195 steps of 256) of the finite network
and of UDNs with as many active depths, their ratio, and what capturing and compiling took before.
Of the UDNs one leaves λ to the optimiser, as the paper does; one to `RateAscent`, with heads that
learn equally fast, as the CIFAR-10 study's usual recipe does; and one to `HeldOutAscent`, with a
family as narrow as it comes to rest, as its better recipes do. λ stays where it is in all of them,
so that every step has the same depth, but all the work of moving it is done, and 2,000 held-out
images are looked at whenever `HeldOutAscent` does at rest. Without a GPU it runs a few steps of a
narrow network, to show that it works; its figures mean nothing then.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import unbounded as ub
from benchmarks.timing import run_epoch, trainer_of
from unbounded.engines import Graphs
from unbounded.experiments.records import versions
from unbounded.training import Augment, DepthRule, HeldOutAscent, ImageData, RateAscent, Trainer


def rate_for(depth: int) -> float:
    """A λ whose support ends at this depth, from the middle of those that do."""
    family = ub.TruncatedPoisson
    low = high = None
    for tenths in range(1, 20 * depth):
        reached = family(tenths / 10).max_depth()
        if reached == depth:
            low = tenths if low is None else low
            high = tenths
    if low is None or high is None:
        raise ValueError(f"no λ ends at depth {depth}")
    return (low + high) / 20


def resting_at(depth: int) -> ub.TruncatedNormal:
    """Half as wide as the reference of `ResidualConv`, with a support that ends at this depth."""
    spread = 0.5 * ub.ResidualConv(3, 10).reference[1]
    places = (depth - tenths / 10 for tenths in range(100))
    found = (ub.TruncatedNormal(place, spread) for place in places)
    return next(family for family in found if family.max_depth() == depth)


def run_of(
    family: ub.DepthFamily,
    data: ImageData,
    device: torch.device,
    width: int,
    engine: Graphs,
    rule: DepthRule | None = None,
) -> Trainer:
    """A run that is ready to step."""
    looks = rule is not None and rule.needs_held_out
    model = ub.UDN(ub.ResidualConv(3, 10, width=width), ub.Categorical(10), family)
    model.to(device).to(memory_format=torch.channels_last)
    optimizer = ub.make_optimizer(
        model, torch.optim.SGD, 0.05, depth_lr_ratio=0.0, momentum=0.9, nesterov=True, fused=True
    )
    return trainer_of(
        model,
        data,
        engine,
        {"val": data.like(data.x[:2000], data.y[:2000])} if looks else {},
        optimizer=optimizer,
        autocast=torch.bfloat16,
        depth_rule=rule,
        equal_heads=rule is not None,
        select="last",
    )


def seconds(trainer: Trainer, epochs: int, device: torch.device) -> list[float]:
    """Wall seconds of each epoch behind the first, whose end the device has reached."""
    found: list[float] = []
    for _ in range(epochs + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run_epoch(trainer)
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found[1:]


def profile(trainer: Trainer) -> None:
    """The kernels of a few steps, by time."""
    trainer.engine.begin_epoch(trainer.epoch)
    with torch.profiler.profile() as seen:
        for _ in range(5):
            trainer.engine.step(True)
        torch.cuda.synchronize()
    print(
        seen.key_averages().table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=90)
    )
    kernels = sum(1 for event in seen.events() if event.device_type.name == "CUDA")
    print(f"{kernels / 5:.0f} kernels a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 21])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some of them, such as finite")
    parser.add_argument("--compile", choices=["yes", "no", "both"], default="yes")
    parser.add_argument("--tune", action="store_true", help="let cuDNN time its convolutions")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, width = (50_000, 64) if device.type == "cuda" else (1024, 4)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (rows, 32, 32, 3), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (rows,), generator=generator)
    data = ImageData(x, y, augment=Augment())
    results: list[dict[str, Any]] = []
    ways = {"yes": [True], "no": [False], "both": [False, True]}[options.compile]
    if device.type != "cuda":
        ways = [False]
    for compiles in ways:
        for depth in options.depths:
            medians = {}
            resting = RateAscent(weight_cost=False)
            resting.rest()
            settled = HeldOutAscent(width=0.5)
            settled.rest()
            for name, family, rule in (
                ("finite", ub.FixedDepth(depth), None),
                ("UDN", ub.TruncatedPoisson(rate_for(depth)), None),
                ("UDN, RateAscent", ub.TruncatedPoisson(rate_for(depth)), resting),
                ("UDN, HeldOutAscent", resting_at(depth), settled),
            ):
                if options.models and name not in options.models:
                    continue
                engine = Graphs(compiles=compiles, tunes=options.tune)
                trainer = run_of(family, data, device, width, engine, rule)
                times = seconds(trainer, options.epochs, device)
                medians[name] = sorted(times)[len(times) // 2]
                results.append(
                    {
                        "model": name,
                        "depth": depth,
                        "compiled": compiles,
                        "epoch_seconds": times,
                        "capture_seconds": engine.capture_seconds,
                    }
                )
                print(
                    f"{name:18} depth {depth:3}, compiled {compiles!s:5}: "
                    f"{medians[name]:.3f} s an epoch ({min(times):.3f} to {max(times):.3f}), "
                    f"{engine.capture_seconds:.1f} s of capturing and compiling before",
                    flush=True,
                )
                if options.profile and device.type == "cuda":
                    profile(trainer)
                engine.finish(best=False)
                torch.cuda.empty_cache()
            for name in [name for name in medians if "finite" in medians and name != "finite"]:
                ratio = medians[name] / medians["finite"]
                print(f"{name} ÷ finite at depth {depth}: {ratio:.3f}", flush=True)
    if options.out is not None:
        text = json.dumps({"versions": versions(device), "rows": results}, indent=1)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
