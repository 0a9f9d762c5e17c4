"""`python -m benchmarks.sequences [MODEL] [--data TEXT]`: a transformer of inferred depth, timed.

- training: tokens a second of a UDN, against the network of fixed depth that is as deep;
- generation: of the mixture over depths, against that network frozen, with one head;
- early exits: generation that leaves layers out, against all layers, and the bits that it loses.

MODEL is a UDN on characters as `unbounded reproduce sequences --keep` leaves it, TEXT the file it
was trained on. Without them weights are random, and what exits lose is not measured. All figures
are ratios of one run; the best of several rounds in turn.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unbounded as ub
from benchmarks.timing import best_times, trainer_of
from unbounded import interrupts
from unbounded.data.sequences import RandomWindows, Text, windows
from unbounded.engines import Eager, Graphs
from unbounded.experiments import records, usable_device
from unbounded.experiments.sequences.recipe import Settings, text_parts
from unbounded.generation import _Writer
from unbounded.steps.streams import Stream

VOCABULARY, WIDTH, WINDOW = 65, 128, 128
ROWS, FEW_ROWS = 64, 8  # of a batch in training, on a GPU and on a CPU
WITHIN = (0.01, 0.02, 0.05, 0.1, 0.2)
STEPS = 5
Figures = dict[str, Any]


def random_model() -> ub.UDN:
    """Weights as they are born, q(ℓ) as after a training."""
    layers = ub.TransformerLayers(VOCABULARY, WIDTH)
    return ub.UDN(layers, ub.Tokens(VOCABULARY), ub.TruncatedNormal(5.0, 0.8))


def of_depth(model: ub.UDN, depth: int) -> ub.UDN:
    """A network of fixed depth, of the same layers."""
    found = ub.UDN(model.layers, model.likelihood, ub.FixedDepth(depth))
    return found.to(model.anchor.device)


def training(model: ub.UDN, rows: int = ROWS, rounds: int = 5) -> Figures:
    """Seconds of a step of the model at rest, and of the fixed network that is as deep."""
    device, (_, last) = model.anchor.device, model.support()
    vocabulary = model.likelihood.vocabulary  # type: ignore[union-attr]
    characters = torch.randint(vocabulary, (100_000,)).to(device)
    stream = Stream(RandomWindows(characters, WINDOW, rows), STEPS, len(characters))
    on_gpu = device.type == "cuda"

    def candidate(net: ub.UDN, rule: ub.HeldOutAscent | None) -> Callable[[], None]:
        options: dict[str, Any] = {"average": 0.99, "clip": 1.0}
        if rule is not None:
            rule.rest()
            options["depth_rule"] = rule
        trainer = trainer_of(net, stream, Graphs() if on_gpu else Eager(), **options)

        def run() -> None:
            trainer._epoch(1 << 60, interrupts.Request(), False)
            if on_gpu:
                torch.cuda.synchronize()

        return run

    ours, reference = best_times(
        [candidate(model, ub.HeldOutAscent()), candidate(of_depth(model, last), None)], rounds
    )
    return {
        "depth": last,
        "step_ms": 1e3 * ours / STEPS,
        "fixed_step_ms": 1e3 * reference / STEPS,
        "tokens_a_second_ratio": reference / ours,
    }


def generation(
    model: ub.UDN,
    batch: int = 1,
    length: int = 64,
    rounds: int = 5,
) -> Figures:
    """Tokens a second of the mixture, of the frozen finite network, and with exits."""
    last = model.support()[1]
    prompt = torch.zeros(batch, 8, dtype=torch.long)
    frozen = model.freeze(depth=last)
    on_gpu = model.anchor.device.type == "cuda"

    def written(by: Any, within: float | None = None) -> Callable[[], None]:
        def run() -> None:
            generator = torch.Generator().manual_seed(0)
            ub.generate(by, prompt, length, within=within, generator=generator)
            if on_gpu:
                torch.cuda.synchronize()

        return run

    candidates = [written(model), written(frozen), written(model.freeze())]
    times = best_times([*candidates, *(written(model, within) for within in WITHIN)], rounds)
    whole, finite, mixture = times[:3]
    return {
        "batch": batch,
        "tokens_a_second": batch * length / whole,
        "against_finite": finite / whole,
        "frozen_mixture_against_finite": finite / mixture,
        "exits": {str(within): whole / t for within, t in zip(WITHIN, times[3:], strict=True)},
    }


@torch.no_grad()
def bits(model: ub.UDN, x: Tensor, y: Tensor, within: float | None = None) -> tuple[float, float]:
    """Bits a character of `(rows, time)`, and the layers that one took, each row read alone."""
    total, layers, count = 0.0, 0, 0
    for row, targets in zip(x, y, strict=True):
        writer = _Writer(model, row[None, :1], len(row), within=within)
        for token, target in zip(row, targets, strict=True):
            found = writer.read(token.view(1, 1).to(writer.device))
            total -= float(found[0, int(target)])
            layers, count = layers + writer.depth, count + 1
    return total / count / math.log(2), layers / count


def losses(model: ub.UDN, text: Text, rows: int) -> Figures:
    """Bits a character of the test pieces of a text, without exits and with each of them."""
    test = text_parts(text, 1.0, WINDOW, Settings().text_stretches)["test"]
    x, y = windows(test, WINDOW, rows)
    model.eval()
    whole, depth = bits(model, x, y)
    found: Figures = {"bits": whole, "layers": depth, "characters": x.numel(), "lost": {}}
    for within in WITHIN:
        own, layers = bits(model, x, y, within)
        found["lost"][str(within)] = {"bits": own - whole, "layers": layers}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sequences",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", type=Path, help="a UDN on characters")
    parser.add_argument("--data", type=Path, help="the text that it was trained on")
    parser.add_argument("--device", default=None, help="cpu or cuda; cuda if there is one")
    parser.add_argument("--rows", type=int, default=16, help="windows that exits are judged by")
    parser.add_argument("--json", type=Path, help="a file to write")
    options = parser.parse_args()
    device = usable_device(options.device)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    model = random_model() if options.model is None else ub.load(options.model)
    model = model.to(device).eval()
    found: Figures = {"study": "sequences benchmark", "versions": records.versions(device)}
    found |= {"depth_mean": model.depth.mean(), "support": list(model.support())}
    found["generation"] = [generation(model, batch) for batch in (1, 16)]
    if options.data is not None:
        found["exits"] = losses(model, Text.read(options.data), options.rows)
    found["training"] = training(model, ROWS if model.anchor.is_cuda else FEW_ROWS)
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
