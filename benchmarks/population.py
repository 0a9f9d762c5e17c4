"""30 spiral models at once against the same 30 one after another.

    python -m benchmarks.population [--epochs 40] [--threads 2]

Prints milliseconds per model and epoch of both, and the ratio; the target is at least 4. Both do
the same work in every epoch: training, and scoring the validation set. The lone models are timed
with one thread and with all of them, and the faster counts: small products gain nothing from
a second thread, and the comparison should not flatter the population. On a machine that is busy
with other things look at the second line: the same from processor time.
"""

import argparse
import time

import torch

import unbounded as ub
from unbounded.data import spiral


def models(count: int, rate: float) -> list[ub.UDN]:
    return [
        ub.UDN(ub.Dense(2, 32, 2), ub.Categorical(2), ub.TruncatedPoisson(rate), seed=seed)
        for seed in range(count)
    ]


class Clock:
    """Milliseconds per model and epoch, by the wall and by the processors."""

    def __init__(self, work: int):
        self.work = work

    def __enter__(self) -> "Clock":
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *reason: object) -> None:
        self.wall = 1e3 * (time.perf_counter() - self._wall) / self.work
        self.cpu = 1e3 * (time.process_time() - self._cpu) / self.work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=4.0, help="the first λ: 4 has 9 layers")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    data = [spiral(10, seed=seed) for seed in range(options.members)]
    validation = [spiral(10, seed=seed, part="validation") for seed in range(options.members)]

    def alone(count: int, threads: int) -> Clock:
        torch.set_num_threads(threads)
        with Clock(count * options.epochs) as clock:
            for model, xy, held_out in zip(
                models(count, options.rate), data, validation, strict=False
            ):
                ub.fit(model, *xy, validation=held_out, epochs=options.epochs)
        return clock

    def together(epochs: int) -> Clock:
        torch.set_num_threads(options.threads)
        with Clock(options.members * epochs) as clock:
            ub.fit(
                models(options.members, options.rate), data, validation=validation, epochs=epochs
            )
        return clock

    alone(1, 1), together(2)  # warm up
    threads = min({1, options.threads}, key=lambda count: alone(2, count).wall)
    one, all_at_once = alone(options.members, threads), together(options.epochs)
    ratio = one.wall / all_at_once.wall
    busy = options.threads * one.cpu / threads / all_at_once.cpu
    print(
        f"{options.members} spiral models, {options.epochs} epochs, λ = {options.rate:g}; ms each"
    )
    print(
        f"wall:      {one.wall:6.2f} one after another ({threads} threads), "
        f"{all_at_once.wall:6.2f} at once ({options.threads} threads): {ratio:.1f} times as fast"
    )
    print(
        f"processor: {one.cpu:6.2f} and {all_at_once.cpu:6.2f}: "
        f"{busy:.1f} times as fast with {options.threads} threads to themselves"
    )


if __name__ == "__main__":
    main()
