"""Does this machine train on images as it should? `python -m tests.gpu.imagecheck`.

Trains a small convolutional UDN for some epochs, with births, and compares: CUDA graphs with the
same kernels launched one by one, two runs with each other, a run that was cut in two at a
checkpoint with one that was not, compiled layers with plain ones, and recomputing layers with
plain ones. Prints one line a check and exits with 1 if one fails. Without a CUDA device the same
code runs without graphs.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from unbounded.depth import TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.engines import Graphs
from unbounded.layers import ResidualConv
from unbounded.likelihoods import Categorical
from unbounded.model import UDN
from unbounded.priors import GaussianWeights, PoissonDepth
from unbounded.training import Augment, ImageData, RateAscent, Sharpen, fit, make_optimizer

EPOCHS = 6


def main(arguments: list[str] | None = None) -> int:
    """Run all checks; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave out what compiles")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    good = True
    for rule in (None, RateAscent):
        good &= check(device, rule, not options.no_compile)
    print("all checks passed" if good else "a check FAILED")
    return 0 if good else 1


def check(device: torch.device, rule: type[RateAscent] | None, compiles: bool) -> bool:
    """All checks of one way to move λ."""
    title = "the optimiser moves λ" if rule is None else "RateAscent moves λ, then Sharpen"
    plain = train(device, rule, graphs=False)
    good = _births(f"{title}: layers are born", plain)
    graphs = train(device, rule)
    good &= _say(f"{title}: graphs = kernel by kernel", plain, graphs, 1e-4)
    good &= _say(f"{title}: two runs agree", graphs, train(device, rule), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.checkpoint"
        train(device, rule, epochs=EPOCHS // 2, checkpoint=path)
        rest = train(device, rule, checkpoint=path, resume=True)
    good &= _say(f"{title}: cut in two at a checkpoint", graphs, rest, 1e-4)
    good &= _say(f"{title}: recomputing layers", graphs, train(device, rule, recomputes=True), 1e-4)
    if compiles:
        compiled = train(device, rule, compiles=True)
        good &= _say(f"{title}: compiled layers", graphs, compiled, 1e-2)
    return good


def train(
    device: torch.device,
    rule: type[RateAscent] | None,
    *,
    graphs: bool | None = None,
    compiles: bool = False,
    recomputes: bool = False,
    **options: Any,
) -> tuple[UDN, list[dict[str, Any]]]:
    """A small model, trained, and where its layers were born."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (512, 8, 8, 3), generator=generator, dtype=torch.uint8)
    x[..., 0] = x[..., 0] // 2 + (torch.arange(512) % 4 * 32)[:, None, None].to(torch.uint8)
    data = ImageData(x, torch.arange(512) % 4, augment=Augment(crop=1))
    model = UDN(
        ResidualConv(3, 4, width=8, stages=(2, 2)),
        Categorical(4),
        TruncatedPoisson(2.0) if rule is None else TruncatedConwayMaxwell(2.0, 1.0),
        PoissonDepth(200.0),  # pulls λ upwards: layers are born and graphs captured
        GaussianWeights(100.0),  # new layers cost next to nothing
        seed=1,
    )
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.network.configure(recomputes=recomputes)
    optimizer = make_optimizer(
        model, torch.optim.SGD, 0.05, depth_lr_ratio=20.0, momentum=0.9, fused=True
    )
    result = fit(
        model,
        data,
        batch_size=64,
        optimizer=optimizer,
        engine=Graphs(graphs=graphs, compiles=compiles),
        depth_rule=None if rule is None else rule(0.04, memory=2),
        equal_heads=rule is not None,
        equal_layers=rule is not None,
        callbacks=() if rule is None else [Sharpen(EPOCHS - 2, 4.0)],
        progress=False,
        **{"epochs": EPOCHS, **options},
    )
    return model, result.history.births


def gap(one: UDN, other: UDN) -> float:
    """The largest difference between parameters and buffers, as a share of the largest of each."""
    first, second = one.state_dict(), other.state_dict()
    if first.keys() != second.keys():
        return float("inf")
    return max(
        float((first[key] - second[key]).abs().max() / (1e-3 + first[key].abs().max()))
        for key in first
    )


def _say(title: str, one: Any, other: Any, limit: float) -> bool:
    found = gap(one[0], other[0])
    same = one[1] == other[1]
    good = found <= limit and same
    births = "" if same else ", births at other steps"
    print(f"{'ok  ' if good else 'FAIL'} {title}: differ by {found:.1e} (≤ {limit:g}){births}")
    return good


def _births(title: str, found: Any) -> bool:
    steps = {birth["step"] for birth in found[1]} - {0}
    print(f"{'ok  ' if steps else 'FAIL'} {title}: at steps {sorted(steps)}")
    return bool(steps)


if __name__ == "__main__":
    sys.exit(main())
