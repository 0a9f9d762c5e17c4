"""Run a function again and again: as it is, or as a CUDA graph."""

from collections.abc import Callable

import torch


class Runner:
    """Calls functions that only work on tensors at fixed places in memory.

    On a CUDA device the first call of each runs as usual on a side stream (real work, which
    also warms up libraries), the second is captured, and from then on the graph is replayed.
    Elsewhere every call runs as usual.

    Args:
        device: where the tensors are.
        graphs: whether to capture; by default on a CUDA device.
        watched: whether other threads look at the device while a graph is captured, as those of
            NCCL do; what they ask must not spoil it.
    """

    def __init__(self, device: torch.device, graphs: bool | None = None, watched: bool = False):
        self.device, self._mode = device, "thread_local" if watched else "global"
        self.captures = device.type == "cuda" if graphs is None else graphs
        if self.captures and device.type != "cuda":
            raise ValueError(f"CUDA graphs need a CUDA device, got {device}")
        self.captured = 0
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._seen: set[str] = set()
        self._stream = torch.cuda.Stream(device) if self.captures else None
        self._pool: object | None = None

    def __call__(self, name: str, function: Callable[[], None]) -> None:
        """Call `function`, known by `name` until the next `clear`."""
        if not self.captures:
            function()
        elif name in self._graphs:
            self._graphs[name].replay()
        elif name not in self._seen:
            self._seen.add(name)
            self._aside(function)
        else:
            self._graphs[name] = self._capture(function)
            self._graphs[name].replay()

    def clear(self) -> None:
        """Forget the graphs: tensors have moved."""
        if self._graphs:
            torch.cuda.synchronize(self.device)
        self._graphs.clear()
        self._seen.clear()
        self._pool = None

    def _aside(self, function: Callable[[], None]) -> None:
        assert self._stream is not None
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if self._pool is None:
            # One pool for all: the graphs never run at the same time, and whatever outlives
            # one of them lies outside of the pool.
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode=self._mode):  # type: ignore[arg-type]
            function()
        self.captured += 1
        return graph
