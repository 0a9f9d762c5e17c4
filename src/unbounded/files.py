"""Models as files: one safetensors file, its configuration as JSON in the header, no pickle."""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded import atomic, growth
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.layers import Dense, ResidualConv, ResidualDense
from unbounded.likelihoods import Bernoulli, Categorical, Gaussian
from unbounded.priors import GaussianWeights, GeometricDepth, PoissonDepth, UniformDepth
from unbounded.schema import FileError as FileError

if TYPE_CHECKING:
    from unbounded.model import UDN

FORMAT = "unbounded-model-1"

# The only names that a file can ask for. A file never names a module or an import path.
_KNOWN: dict[str, dict[str, Any]] = {
    part: {cls.__name__: cls for cls in classes}
    for part, classes in {
        "layers": (Dense, ResidualDense, ResidualConv),
        "likelihood": (Categorical, Bernoulli, Gaussian),
        "depth": (TruncatedPoisson, TruncatedConwayMaxwell, FixedDepth, FiniteDepth),
        "depth_prior": (PoissonDepth, GeometricDepth, UniformDepth),
        "weight_prior": (GaussianWeights,),
    }.items()
}
PARTS = tuple(_KNOWN)
"""What a model is made of: the parts of your own that `load` takes."""


def save(
    model: "UDN",
    path: str | Path,
    *,
    extra: dict[str, Any] | None = None,
    siblings: Sequence["UDN"] = (),
) -> None:
    """Write the model to one safetensors file, atomically.

    Args:
        model: any model; parts of your own are named in the file and passed to `load` again.
        path: the file; replaced if it is there.
        extra: plain data (JSON) to travel along; `read_header` gives it back.
        siblings: further members of an ensemble, alike but for seed, λ and weights; `load_all`
            gives them back.
    """
    header = {
        "format": FORMAT,
        "num_layers": model.network.num_layers,
        "dtype": str(model.anchor.dtype).removeprefix("torch."),
        "cumulative_heads": model.cumulative_heads,
        "seed": model.seed,
        "extra": extra or {},
        "siblings": [{"num_layers": s.network.num_layers, "seed": s.seed} for s in siblings],
    }
    for part in _KNOWN:
        header[part] = _describe(part, getattr(model, part))
    tensors = dict(model.state_dict())
    for number, sibling in enumerate(siblings, 1):
        tensors |= {f"{_SIBLING}{number}.{k}": v for k, v in sibling.state_dict().items()}
    write_tensors(path, tensors, {"unbounded": json.dumps(header)})


def load(path: str | Path, *, device: str | torch.device = "cpu", **parts: Any) -> "UDN":
    """Read a model that `save` wrote. Built-in parts rebuild themselves, pass in your own.

    No pickle is read and no code is run that the file could choose.

    Args:
        path: the file.
        device: where the model goes.
        parts: `layers`, `likelihood`, `depth`, `depth_prior` or `weight_prior` of your own.

    Raises:
        FileError: if the file is truncated, foreign, or asks for what it does not hold.
    """
    return load_all(path, device=device, **parts)[0]


def load_all(path: str | Path, *, device: str | torch.device = "cpu", **given: Any) -> list["UDN"]:
    """The model of a file and, behind it, its siblings; arguments as in `load`."""
    from unbounded.model import UDN, deepest_layer

    unknown = sorted(set(given) - set(PARTS))
    if unknown:
        raise TypeError(f"load takes device and {', '.join(PARTS)}, got {unknown}")
    tensors, metadata = read_tensors(path)
    header = parse_header(path, metadata)
    described = header.get("siblings", [])
    if not isinstance(described, list) or len(described) > len(tensors):
        raise FileError(f"{path} claims siblings that it does not hold")
    states = [_state(tensors, number) for number in range(len(described) + 1)]
    _check_count(path, header.get("num_layers"), states[0])
    dtype = _DTYPES.get(header.get("dtype"))  # type: ignore[arg-type]
    if dtype is None:
        raise FileError(f"{path} has the unknown dtype {header.get('dtype')!r}")
    _check_sizes(path, header, tensors)
    models: list[UDN] = []
    with rebuilding(path, "does not describe a model this version can build"):
        for state, one in zip(states, [header, *described], strict=True):
            _check_count(path, one["num_layers"], state)
            parts = {name: _rebuild(path, header, name, given.get(name)) for name in PARTS}
            heads = bool(header["cumulative_heads"])
            model = UDN(**parts, cumulative_heads=heads, seed=int(one["seed"]))
            model.to(dtype)
            named = deepest_layer(state)
            if named > one["num_layers"]:  # `load_state_dict` would make them all
                raise ValueError(f"it claims {one['num_layers']} layers and names layer {named}")
            growth.resize(model, one["num_layers"])
            model.load_state_dict(state)
            models.append(model.to(device).eval())
            given = copy.deepcopy(given)  # each sibling has parts of its own
    return models


@contextmanager
def rebuilding(path: str | Path, what: str) -> Iterator[None]:
    """What goes wrong while a file's description is built again, as a FileError."""
    try:
        yield
    except FileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise FileError(f"{path} {what}: {error}") from None


def read_header(path: str | Path, expected: str = FORMAT) -> dict[str, Any]:
    """The configuration in a file's header, without reading the tensors."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
    return parse_header(path, metadata, expected)


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, atomically."""
    from safetensors.torch import save as to_bytes

    path = atomic.check_target(path)
    # clone: safetensors refuses tensors that share memory, as views of one buffer do.
    plain = {k: v.detach().to("cpu").contiguous().clone() for k, v in tensors.items()}
    atomic.write_bytes(path, to_bytes(plain, metadata))


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file, or a FileError."""
    with _opened(path) as file:
        # clone: the tensors outlive the mapping of the file into memory.
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, a model file was expected")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(str(path), "pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} is not a complete safetensors file: {error}") from None


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
}
_SIBLING = "sibling."


def _state(tensors: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """What a file holds of the model (number 0) or of one of its siblings."""
    if number == 0:
        return {k: v for k, v in tensors.items() if not k.startswith(_SIBLING)}
    return under(tensors, f"{_SIBLING}{number}.")


def _check_count(path: str | Path, num_layers: Any, tensors: dict[str, Tensor]) -> None:
    """A file cannot ask for more layers than it has tensors for."""
    if not isinstance(num_layers, int) or not 1 <= num_layers <= len(tensors):
        raise FileError(f"{path} claims {num_layers!r} layers and holds {len(tensors)} tensors")


def _describe(part: str, value: Any) -> dict[str, Any]:
    """The name and arguments of a built-in part; only the name of a user's own."""
    name = type(value).__name__
    if _KNOWN[part].get(name) is type(value):
        try:
            return {"kind": name, "config": value.config()}
        except NotImplementedError:
            pass  # a built-in part that was given a callable
    return {"kind": name, "config": None}


def _rebuild(path: str | Path, header: dict[str, Any], part: str, given: Any) -> Any:
    if given is not None:
        return given
    described = header[part]
    kind, config = described["kind"], described["config"]
    cls = _KNOWN[part].get(kind)
    if cls is None or config is None:
        raise FileError(
            f"{path} was saved with a {part} of the user's own ({kind}): "
            f"pass it as load(path, {part}=…)"
        )
    return getattr(cls, "from_config", cls)(**config)


def parse_header(
    path: str | Path, metadata: dict[str, str], expected: str = FORMAT
) -> dict[str, Any]:
    """The header of a file in the expected format, or a FileError."""
    if "unbounded" not in metadata:
        raise FileError(f"{path} is a safetensors file, but not one of this library")
    try:
        header = json.loads(metadata["unbounded"])
    except (ValueError, RecursionError):
        raise FileError(f"{path} has a damaged header: it is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("format"), str):
        raise FileError(f"{path} has a damaged header: no format is named")
    if header["format"] != expected:
        raise FileError(
            f"{path} has the format {header['format']!r}, this version reads {expected!r} here"
        )
    return header


def _check_sizes(path: str | Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Sizes in the header must be ones that the tensors have: no file can order up memory."""
    largest = max((max(t.shape, default=1) for t in tensors.values()), default=1)
    for part in _KNOWN:
        config = (header.get(part) or {}).get("config") or {}
        for key, value in config.items() if isinstance(config, dict) else ():
            if isinstance(value, int) and value > max(largest, len(tensors)) and key != "limit":
                raise FileError(f"{path} claims {part}.{key} = {value}, its tensors are smaller")
