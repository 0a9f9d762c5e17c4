"""Small data and models that several test files use."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import unbounded as ub
from unbounded.depth import DepthFamily, TruncatedPoisson


def classes(rows: int = 64, features: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes that a small network can tell apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def numbers(rows: int = 64, features: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth response with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator)
    return x, x[:, 0].sin() + 0.1 * torch.randn(rows, generator=generator)


def classifier(depth: DepthFamily | None = None, *, width: int = 8, seed: int = 0, **options):
    """A small classifier of two classes from three features."""
    depth = TruncatedPoisson(1.0) if depth is None else depth
    return ub.UDN(ub.Dense(3, width, 2), ub.Categorical(2), depth, seed=seed, **options)


def state(model) -> dict[str, Tensor]:
    """A copy of all parameters and buffers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server on loopback that answers by this handler."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
