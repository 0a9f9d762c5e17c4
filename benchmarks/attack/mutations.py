"""Files that somebody damaged or made up: one hostile change at a time, from a seed.

`mutate_file` changes the bytes of a safetensors file of this library: bits, blocks, fields of the
header, tensors. Half of the changes to header and tensors are resealed: the digest is computed
anew, as an attacker would. The rest is what a disk or a network does.
"""

import copy
import json
import math
import random
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from unbounded.files import digest

HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1.0, 2.5, 1e5, 1e9, 1e30, 1e308, -1e308),
    *(
        5e-324,
        10**6,
        2 * 10**9,
        2**31,
        2**63,
        2**64,
        10**30,
        10**400,
        math.nan,
        math.inf,
        -math.inf,
    ),
    *(
        "",
        "a",
        "0",
        "nan",
        "auto",
        "\ud800",
        "\x00",
        "é",
        "x" * 5000,
        "../../etc/passwd",
        "%s%n",
        "{}",
    ),
    *("<U500000000", "<U4", "object", "V8", "<i8", "float64", "float16", "FixedDepth", "Gaussian"),
    *([], [[]], [None], [1], ["a"], ["a", "a"], [1e308] * 3, list(range(50)), [[1] * 3] * 3),
    *({}, {"": None}, {"kind": "Dense"}, {"kind": None, "config": None}, {"a": {"b": {"c": []}}}),
]
NESTED = 600


class Mutation(NamedTuple):
    """A changed file, what was done to it, and whether its digest was made to fit."""

    data: bytes
    what: str
    resealed: bool


def mutate_file(data: bytes, rng: random.Random) -> Mutation:
    """One change of a kind drawn at random; the same seed gives the same change."""
    kind = rng.choice([_bytes, _bytes, _header, _header, _header, _header, _tensors, _tensors])
    return kind(data, rng)


def split(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return from_bytes(data), json.loads(data[8 : 8 + size])["__metadata__"]


def joined(tensors: dict[str, Tensor], metadata: dict[str, str], *, reseal: bool) -> bytes:
    """A safetensors file, with its old digest or one that fits."""
    if reseal:
        metadata = {**metadata, "digest": digest(tensors, metadata)}
    return to_bytes({name: t.contiguous().clone() for name, t in tensors.items()}, metadata)


def _bytes(data: bytes, rng: random.Random) -> Mutation:
    changed = bytearray(data)
    size = int.from_bytes(data[:8], "little")
    at = rng.choice([rng.randrange(len(data)), rng.randrange(8), rng.randrange(8 + size)])
    kind = rng.choice(["flip", "flip", "set", "cut", "insert", "delete", "swap", "length", "zero"])
    if kind == "flip":
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == "set":
        changed[at] = rng.randrange(256)
    elif kind == "cut":
        del changed[at:]
    elif kind == "insert":
        changed[at:at] = rng.randbytes(rng.choice([1, 4, 64]))
    elif kind == "delete":
        del changed[at : at + rng.choice([1, 4, 64])]
    elif kind == "length":
        new = rng.choice([0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1])
        changed[:8] = new.to_bytes(8, "little")
    elif kind == "zero":
        length = rng.choice([4, 64, 512])
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    else:
        other, length = rng.randrange(len(data)), rng.choice([4, 32, 256])
        a, b = sorted((at, other))
        length = min(length, b - a, len(data) - b)
        changed[a : a + length], changed[b : b + length] = (
            changed[b : b + length],
            changed[a : a + length],
        )
    return Mutation(bytes(changed), f"{kind} at byte {at}", False)


def _header(data: bytes, rng: random.Random) -> Mutation:
    tensors, metadata = split(data)
    header = json.loads(metadata["unbounded"])
    reseal = rng.random() < 0.7
    what = _change(header, rng)
    if rng.random() < 0.15:
        what += "; " + _change(header, rng)
    text = json.dumps(header)
    if rng.random() < 0.02:
        text = rng.choice(
            ["", "null", "[]", "{", "1" * 5000, "[" * NESTED + "]" * NESTED, text[:-1]]
        )
        what = f"header {text[:10]!r}"
    return Mutation(joined(tensors, {**metadata, "unbounded": text}, reseal=reseal), what, reseal)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields; of long lists, the first items."""
    found = [path] if path else []
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:3]))
    for key, inner in items:
        found += _places(inner, (*path, key))
    return found


def _change(header: dict[str, Any], rng: random.Random) -> str:
    """Change one field in place; what stands near the top is as likely as all below it."""
    places = _places(header)
    depth = rng.randint(1, max(map(len, places)))
    path = rng.choice([p for p in places if len(p) <= depth])
    owner: Any = header
    for key in path[:-1]:
        owner = owner[key]
    key, old = path[-1], owner[path[-1]]
    kind = rng.choice(["value", "value", "value", "number", "drop", "rename", "copy", "order"])
    if kind == "drop":
        del owner[key]
    elif kind == "rename" and isinstance(owner, dict):
        owner[rng.choice(["x", str(key) + "_", "\ud800", ""])] = owner.pop(key)
    elif kind == "copy":
        other = rng.choice(places)
        inner: Any = header
        for step in other:
            inner = inner[step]
        owner[key] = copy.deepcopy(inner)
    elif kind == "order" and isinstance(old, list) and old:
        owner[key] = rng.choice(
            [old[::-1], old * 2, old[:-1], old[1:] + old[:1], old[:1] * len(old)]
        )
    elif kind == "number" and isinstance(old, int | float) and not isinstance(old, bool):
        owner[key] = rng.choice([old + 1, old - 1, -old, old * 1000, float(old), old * 10**9, 0])
    else:
        value = copy.deepcopy(rng.choice(HOSTILE))
        if rng.random() < 0.03:
            for _ in range(NESTED):
                value = [value]
        owner[key] = value
    return f"{kind} {'.'.join(map(str, path))[:80]} = {_shown(owner, key)}"


def _shown(owner: Any, key: Any) -> str:
    try:
        return repr(owner[key])[:60]
    except (KeyError, IndexError, RecursionError, ValueError):
        return "…"


def _tensors(data: bytes, rng: random.Random) -> Mutation:
    tensors, metadata = split(data)
    tensors = dict(sorted(tensors.items()))
    name = rng.choice(list(tensors))
    old, reseal = tensors[name], rng.random() < 0.7
    kind = rng.choice(["drop", "rename", "shape", "retype", "value", "add", "swap", "scale"])
    if kind == "drop":
        del tensors[name]
    elif kind == "rename":
        new = rng.choice([name + "_", "network.hidden.1000000000.weight", "sibling.9." + name, "x"])
        tensors[new] = tensors.pop(name)
    elif kind == "shape":
        numel = old.numel()
        shapes = [(numel,), (1, numel), (numel, 1), (0, 10**6), (10**6, 0), (0,), (numel, 1, 1)]
        shape = rng.choice(shapes)
        tensors[name] = old.reshape(shape) if math.prod(shape) == numel else torch.empty(shape)
    elif kind == "retype":
        types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
        tensors[name] = old.to(rng.choice([*types, torch.complex64]))
    elif kind == "value":
        flat = old.clone().reshape(-1)
        numbers = [math.nan, math.inf, -math.inf, 1e38, -1e38, 0.0, 1e-45, 1e5, 60.0, -700.0]
        if flat.numel():
            flat[rng.randrange(flat.numel())] = rng.choice(numbers)
        tensors[name] = flat.reshape(old.shape)
    elif kind == "scale":
        tensors[name] = old * rng.choice([0.0, -1.0, 10.0, 1e4, 1e30])
    elif kind == "swap":
        other = rng.choice(list(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    else:
        new = rng.choice(
            ["extra", "network.hidden.99.weight", "depth.nu", "sibling.1.x", "sibling."]
        )
        tensors[new] = rng.choice([torch.zeros(3), torch.empty(0, 10**6), torch.tensor(1.0)])
    return Mutation(joined(tensors, metadata, reseal=reseal), f"{kind} {name}", reseal)
