"""Operations of torch in ONNX's words; the ones that layers and likelihoods here are made of."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from unbounded.exporting.graphs import ExportError, Graph, Operator, Symbol

OPERATORS: dict[str, Operator] = {}
_FAR = np.iinfo(np.int64).max


def _operator(*names: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        for name in names:
            full = (
                name
                if "." in name or name in ("add", "sub", "mul", "floordiv")
                else f"{name}.default"
            )
            OPERATORS[f"aten.{full}" if "." in full else full] = function
        return function

    return register


def _dtype(node: fx.Node | Any) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _axis(value: int, node: Any) -> int:
    """An axis counted from the front, of the first input."""
    return int(value) % max(node.meta["val"].dim(), 1)


def _options(args: list[Any], *defaults: Any) -> list[Any]:
    """Arguments behind the first, filled up."""
    return [*args[1:], *defaults[len(args) - 1 :]]


# One number at a time


_PLAIN = {
    **{name: name.capitalize() for name in ("relu", "tanh", "sigmoid", "exp", "log", "sqrt")},
    **{
        name: name.capitalize() for name in ("cos", "sin", "erf", "neg", "abs", "floor", "softplus")
    },
    "mish": "Mish",
    "reciprocal": "Reciprocal",
    "isnan": "IsNaN",
    "logical_not": "Not",
    "bitwise_not": "Not",
    "sign": "Sign",
}


def _plain(kind: str) -> Operator:
    def translated(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
        return graph.node(kind, args[0])

    return translated


for _name, _kind in _PLAIN.items():
    OPERATORS[f"aten.{_name}.default"] = _plain(_kind)


@_operator("softplus")
def _softplus(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if _options(args, 1, 20)[0] != 1:
        raise ExportError("softplus with a beta other than 1 has no translation to ONNX")
    return graph.node("Softplus", args[0])


@_operator("silu")
def _silu(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Mul", args[0], graph.node("Sigmoid", args[0]))


@_operator("log_sigmoid")
def _log_sigmoid(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Neg", graph.node("Softplus", graph.node("Neg", args[0])))


@_operator("asinh")
def _asinh(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if _dtype(node) == torch.float32:
        return graph.node("Asinh", args[0])
    # sign(x) log(|x| + √(x² + 1)): of doubles runtimes have no other.
    size, one = graph.node("Abs", args[0]), _number(1.0, _dtype(node))
    root = graph.node("Sqrt", graph.node("Add", graph.node("Mul", size, size), one))
    log = graph.node("Log", graph.node("Add", size, root))
    return graph.node("Mul", graph.node("Sign", args[0]), log)


@_operator("gelu")
def _gelu(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if options.get("approximate", "none") != "none":
        raise ExportError("an approximate gelu has no translation to ONNX: take the exact one")
    return graph.node("Mul", args[0], _normal_cdf(graph, args[0], _dtype(node)))


@_operator("special_ndtr")
def _ndtr(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return _normal_cdf(graph, args[0], _dtype(node))


def _normal_cdf(graph: Graph, x: Any, dtype: torch.dtype) -> Any:
    erf = graph.node("Erf", graph.node("Mul", x, _number(math.sqrt(0.5), dtype)))
    half = graph.node("Mul", erf, _number(0.5, dtype))
    return graph.node("Add", half, _number(0.5, dtype))


@_operator("rsqrt")
def _rsqrt(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Reciprocal", graph.node("Sqrt", args[0]))


@_operator("square")
def _square(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Mul", args[0], args[0])


@_operator("pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor_Tensor")
def _pow(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if args[1] == 2:
        return graph.node("Mul", args[0], args[0])
    return graph.node("Pow", *_alike(graph, node, args, _dtype(node)))


@_operator("clamp", "clamp.Tensor")
def _clamp(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    low, high = _options([*args], None, None)
    low, high = options.get("min", low), options.get("max", high)
    found = args[0]
    for kind, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            found = graph.node(kind, *_alike(graph, node, [found, bound], _dtype(node)))
    return found


@_operator("_to_copy", "to.dtype")
def _to(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    source = node.args[0]
    if isinstance(source, fx.Node) and _dtype(source) == _dtype(node):
        return args[0]
    return graph.cast(args[0], _dtype(node))


@_operator("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "detach_", "dropout")
def _same(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return args[0]


# Two or three


def _alike(graph: Graph, node: fx.Node, args: list[Any], dtype: torch.dtype) -> list[Any]:
    """Operands in one type: numbers become constants, tensors of another type are cast."""
    found = []
    for value, source in zip(args, node.args, strict=False):
        if isinstance(value, Symbol):
            value = value if dtype == torch.int64 else graph.cast(value, dtype)
        elif isinstance(value, str):
            theirs = _dtype(source) if isinstance(source, fx.Node) else dtype
            value = value if theirs == dtype else graph.cast(value, dtype)
        else:
            value = value.to(dtype) if isinstance(value, Tensor) else _number(value, dtype)
        found.append(value)
    return found


def _binary(kind: str, compares: bool = False) -> Operator:
    def translated(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
        dtype = _dtype(node)
        if compares:
            kinds = [
                _dtype(one)
                for one in node.all_input_nodes
                if "val" in one.meta and hasattr(one.meta["val"], "dtype")
            ]
            dtype = kinds[0]
            for other in kinds[1:]:
                dtype = torch.promote_types(dtype, other)
        pair = _alike(graph, node, args[:2], dtype)
        alpha = options.get("alpha", 1)
        if alpha != 1:
            pair[1] = graph.node("Mul", pair[1], _number(alpha, dtype))
        return graph.node(kind, *pair)

    return translated


for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    for _form in ("Tensor", "Scalar"):
        OPERATORS[f"aten.{_name}.{_form}"] = _binary(_kind)
for _name, _kind in {"maximum": "Max", "minimum": "Min"}.items():
    OPERATORS[f"aten.{_name}.default"] = _binary(_kind)
for _name, _kind in {"logical_and": "And", "logical_or": "Or"}.items():
    OPERATORS[f"aten.{_name}.default"] = _binary(_kind)
for _name, _kind in {"bitwise_and": "And", "bitwise_or": "Or"}.items():
    OPERATORS[f"aten.{_name}.Tensor"] = _binary(_kind)
for _name, _kind in {
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
}.items():
    for _form in ("Tensor", "Scalar"):
        OPERATORS[f"aten.{_name}.{_form}"] = _binary(_kind, compares=True)


@_operator("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    dtype = _dtype(node)
    found = []
    for value, source in zip(args[1:], node.args[1:], strict=True):
        if not isinstance(value, str):
            value = value.to(dtype) if isinstance(value, Tensor) else _number(value, dtype)
        elif isinstance(source, fx.Node) and _dtype(source) != dtype:
            value = graph.cast(value, dtype)
        found.append(value)
    return graph.node("Where", args[0], *found)


@_operator("masked_fill.Scalar")
def _masked_fill(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Where", args[1], _number(args[2], _dtype(node)), args[0])


@_operator("addcmul")
def _addcmul(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if options.get("value", 1) != 1:
        raise ExportError("addcmul with a value has no translation to ONNX")
    return graph.node("Add", args[0], graph.node("Mul", args[1], args[2]))


# Whole numbers that are known when the graph runs


@_operator("sym_size.int")
def _size(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    shape = graph.node("Shape", args[0], start=args[1], end=args[1] + 1)
    return Symbol(graph.node("Squeeze", shape, np.array([0], np.int64)))


def _whole(kind: str) -> Operator:
    def translated(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
        numbers = [a if isinstance(a, str) else np.array(a, np.int64) for a in args]
        return Symbol(graph.node(kind, *numbers))

    return translated


for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "Div"}.items():
    OPERATORS[_name] = _whole(_kind)


@_operator("arange.start_step", "arange.start", "arange")
def _arange(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if _dtype(node) != torch.int64:
        raise ExportError("an arange of other than whole numbers has no translation to ONNX")
    ends = [v if isinstance(v, str) else np.array(v, np.int64) for v in (start, end, step)]
    return graph.node("Range", *ends)


@_operator("full")
def _full(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Expand", _number(args[1], _dtype(node)), graph.sizes(args[0]))


@_operator("full_like", "zeros_like", "ones_like")
def _full_like(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    value = {"zeros_like": 0, "ones_like": 1}.get(str(node.target).split(".")[1])
    value = args[1] if value is None else value
    return graph.node("Expand", _number(value, _dtype(node)), graph.node("Shape", args[0]))


# Shapes


@_operator("view", "reshape", "_unsafe_view")
def _view(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Reshape", args[0], graph.shape(args[1]))


@_operator("permute")
def _permute(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Transpose", args[0], perm=[_axis(axis, node) for axis in args[1]])


@_operator("transpose.int")
def _transpose(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    order = list(range(node.meta["val"].dim()))
    one, other = _axis(args[1], node), _axis(args[2], node)
    order[one], order[other] = order[other], order[one]
    return graph.node("Transpose", args[0], perm=order)


@_operator("t")
def _turned(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Transpose", args[0])


@_operator("movedim.int")
def _movedim(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    order = list(range(node.meta["val"].dim()))
    order.insert(_axis(args[2], node), order.pop(_axis(args[1], node)))
    return graph.node("Transpose", args[0], perm=order)


@_operator("flatten.using_ints", "unflatten.int", "expand_as")
def _reshaped(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    """By the sizes that torch has found, those that are known; the others are one factor."""
    if "expand_as" in str(node.target):
        return graph.node("Expand", args[0], graph.node("Shape", args[1]))
    source: Any = node.args[0]
    before, after = source.meta["val"].shape, node.meta["val"].shape
    # Sizes in front that stay as they are: ONNX writes 0 for those.
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    sizes = [0] * same + [size if isinstance(size, int) else -1 for size in after[same:]]
    if sizes.count(-1) > 1:
        raise ExportError(f"a {node.target} of several sizes that vary is not exported to ONNX")
    return graph.node("Reshape", args[0], np.array(sizes, np.int64))


@_operator("unsqueeze")
def _unsqueeze(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Unsqueeze", args[0], np.array([_axis(args[1], node)], np.int64))


@_operator("squeeze.dims", "squeeze.dim")
def _squeeze(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axes = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    return graph.node(
        "Squeeze", args[0], np.array([_axis(a, node.args[0]) for a in axes], np.int64)
    )


@_operator("expand")
def _expand(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    sizes = [1 if isinstance(size, int) and size == -1 else size for size in args[1]]
    return graph.node("Expand", args[0], graph.sizes(sizes))


@_operator("repeat")
def _repeat(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    source: Any = node.args[0]
    for _ in range(len(args[1]) - source.meta["val"].dim()):
        args[0] = graph.node("Unsqueeze", args[0], np.array([0], np.int64))
    return graph.node("Tile", args[0], graph.sizes(args[1]))


@_operator("cat")
def _cat(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _axis(_options(args, 0)[0], node)
    if len(args[0]) == 1:
        return args[0][0]
    sources: Any = node.args[0]
    dtype = _dtype(node)
    parts = [
        graph.cast(v, dtype) if isinstance(v, str) and _dtype(s) != dtype else v
        for v, s in zip(args[0], sources, strict=True)
    ]
    return graph.node("Concat", *parts, axis=axis)


@_operator("stack")
def _stack(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _axis(_options(args, 0)[0], node)
    along = np.array([axis], np.int64)
    parts = [graph.node("Unsqueeze", part, along) for part in args[0]]
    return parts[0] if len(parts) == 1 else graph.node("Concat", *parts, axis=axis)


@_operator("unbind.int")
def _unbind(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _axis(_options(args, 0)[0], node.args[0])
    count = len(node.meta["val"])
    return [graph.node("Gather", args[0], np.array(k, np.int64), axis=axis) for k in range(count)]


@_operator("chunk")
def _chunk(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _axis(_options(args, None, 0)[1], node.args[0])
    sizes = np.array([int(part.shape[axis]) for part in node.meta["val"]], np.int64)
    return graph.node("Split", args[0], sizes, outputs=len(sizes), axis=axis)


@_operator("slice.Tensor")
def _slice(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis, start, end, step = _options(args, 0, None, None, 1)
    bounds = [0 if start is None else start, _FAR if end is None else end]
    ends = [graph.sizes([b]) if isinstance(b, str) else np.array([b], np.int64) for b in bounds]
    along = np.array([_axis(axis, node)], np.int64)
    return graph.node("Slice", args[0], *ends, along, np.array([step], np.int64))


@_operator("select.int")
def _select(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _axis(args[1], node.args[0])
    return graph.node("Gather", args[0], np.array(args[2], np.int64), axis=axis)


@_operator("index_select")
def _index_select(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Gather", args[0], args[2], axis=_axis(args[1], node))


@_operator("index.Tensor")
def _index(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    chosen = [place for place, index in enumerate(args[1]) if index is not None]
    if len(chosen) != 1:
        raise ExportError("indexing by several tensors has no translation to ONNX")
    return graph.node("Gather", args[0], args[1][chosen[0]], axis=chosen[0])


@_operator("embedding")
def _embedding(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("Gather", args[0], args[1], axis=0)


@_operator("split_with_sizes")
def _split(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis = _options(args, None, 0)[1]
    sizes = np.array(args[1], np.int64)
    source = node.args[0]
    return graph.node("Split", args[0], sizes, outputs=len(sizes), axis=_axis(axis, source))
