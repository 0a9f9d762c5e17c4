"""30 spiral models at once against the same 30 one after another.

    python -m benchmarks.population [--epochs 40] [--threads 2]

Prints seconds per model and epoch of both, and the ratio; the target is at least 4. Both do the
same work: training, and scoring the validation set, in every epoch. The lone models are timed
with one thread and with all of them, and the faster counts: small products gain nothing from
a second thread, and the comparison should not flatter the population.
"""

import argparse
import time

import torch

import unbounded as ub
from unbounded.data import spiral
from unbounded.engine import fit_population


def models(count: int, rate: float) -> list[ub.UDN]:
    return [
        ub.UDN(ub.Dense(2, 32, 2), ub.Categorical(2), ub.TruncatedPoisson(rate), seed=seed)
        for seed in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=4.0, help="the first λ: 4 has 9 layers")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    data = [spiral(10, seed=seed) for seed in range(options.members)]
    validation = [spiral(10, seed=seed, part="validation") for seed in range(options.members)]

    def alone(count: int, threads: int) -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        for model, xy, held_out in zip(models(count, options.rate), data, validation, strict=False):
            ub.fit(model, *xy, validation=held_out, epochs=options.epochs)
        return (time.perf_counter() - start) / count / options.epochs

    def together(epochs: int) -> float:
        torch.set_num_threads(options.threads)
        start = time.perf_counter()
        fit_population(
            models(options.members, options.rate), data, validation=validation, epochs=epochs
        )
        return (time.perf_counter() - start) / options.members / epochs

    alone(1, 1), together(2)  # warm up
    threads = min((1, options.threads), key=lambda count: alone(2, count))
    one = alone(options.members, threads)
    all_at_once = together(options.epochs)
    print(f"{options.members} spiral models, {options.epochs} epochs, λ = {options.rate}")
    print(f"one after another ({threads} threads): {1e3 * one:7.2f} ms per model and epoch")
    print(f"at once ({options.threads} threads):          {1e3 * all_at_once:7.2f} ms")
    print(f"ratio: {one / all_at_once:.1f}")


if __name__ == "__main__":
    main()
