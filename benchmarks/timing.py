"""Timing on noisy machines: alternate the candidates, take the best of several rounds."""

import gc
import time
from collections.abc import Callable, Sequence


def best_times(candidates: Sequence[Callable[[], object]], rounds: int = 7) -> list[float]:
    """Seconds of each candidate: the fastest of `rounds`, run in turn so that noise hits all."""
    for candidate in candidates:
        candidate()  # warm-up: allocations, threads, caches
    best = [float("inf")] * len(candidates)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for index, candidate in enumerate(candidates):
                start = time.perf_counter()
                candidate()
                best[index] = min(best[index], time.perf_counter() - start)
    finally:
        gc.enable()
    return best
