"""Operations over whole axes in ONNX's words: sums, products of matrices, layers with weights."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from unbounded.exporting.graphs import ExportError, Graph, Operator, Symbol
from unbounded.exporting.operators import OPERATORS, _axis, _dtype, _number, _operator, _options

# Sums over axes


def _over_axes(kind: str) -> Operator:
    def translated(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
        axes, keep = _options(args, [], False)
        source: Any = node.args[0]
        axes = [axes] if isinstance(axes, int) else list(axes or range(source.meta["val"].dim()))
        along = np.array([_axis(axis, source) for axis in axes], np.int64)
        given = args[0]
        if _dtype(source) != _dtype(node):
            given = graph.cast(given, _dtype(node))
        return graph.node(kind, given, along, keepdims=int(bool(keep)))

    return translated


for _name, _kind in {
    "sum.dim_IntList": "ReduceSum",
    "mean.dim": "ReduceMean",
    "amax.default": "ReduceMax",
    "amin.default": "ReduceMin",
}.items():
    OPERATORS[f"aten.{_name}"] = _over_axes(_kind)


@_operator("logsumexp")
def _logsumexp(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    # The largest is taken out first: not every runtime does.
    axes, keep = _options(args, [], False)
    source: Any = node.args[0]
    along = np.array([_axis(axis, source) for axis in axes], np.int64)
    top = graph.node("ReduceMax", args[0], along, keepdims=1)
    each = graph.node("Exp", graph.node("Sub", args[0], top))
    found = graph.node(
        "Add", graph.node("Log", graph.node("ReduceSum", each, along, keepdims=1)), top
    )
    return found if keep else graph.node("Squeeze", found, along)


@_operator("softmax.int", "log_softmax.int")
def _softmax(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    kind = "LogSoftmax" if "log" in str(node.target) else "Softmax"
    return graph.node(kind, args[0], axis=_axis(args[1], node))


@_operator("argmax")
def _argmax(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis, keep = _options(args, None, False)
    return graph.node("ArgMax", args[0], axis=_axis(axis, node.args[0]), keepdims=int(keep))


@_operator("max.dim")
def _max(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    axis, keep = _options(args, None, False)
    along = _axis(axis, node.args[0])
    highest = graph.node("ReduceMax", args[0], np.array([along], np.int64), keepdims=int(keep))
    return [highest, graph.node("ArgMax", args[0], axis=along, keepdims=int(keep))]


@_operator("cumsum")
def _cumsum(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    given = args[0]
    source: Any = node.args[0]
    if _dtype(source) != _dtype(node):
        given = graph.cast(given, _dtype(node))
    return graph.node("CumSum", given, np.array(_axis(args[1], node), np.int64))


# Matrices


@_operator("mm", "bmm", "matmul")
def _matmul(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    return graph.node("MatMul", args[0], args[1])


@_operator("addmm", "baddbmm")
def _addmm(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    if options.get("beta", 1) != 1 or options.get("alpha", 1) != 1:
        raise ExportError("a product of matrices with factors has no translation to ONNX")
    return graph.node("Add", graph.node("MatMul", args[1], args[2]), args[0])


@_operator("linear")
def _linear(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    x, weight, bias = (*args, None)[:3]
    source: Any = node.args[0]
    if not isinstance(weight, Tensor):
        raise ExportError("a linear map whose matrix depends on the input is not exported to ONNX")
    if source.meta["val"].dim() == 2 and isinstance(x, str):
        return graph.node("Gemm", x, weight, *([] if bias is None else [bias]), transB=1)
    found = graph.node("MatMul", x, weight.t().contiguous())
    return found if bias is None else graph.node("Add", found, bias)


@_operator("tensordot")
def _tensordot(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    one: Any = node.args[0]
    if one.meta["val"].dim() != 1 or [args[2][0] % 1, *args[3]] != [0, 0]:
        raise ExportError("a tensordot other than a weighted sum is not exported to ONNX")
    other: Any = node.args[1]
    shape = (-1, *[1] * (other.meta["val"].dim() - 1))
    weights = args[0].view(shape) if isinstance(args[0], Tensor) else None
    if weights is None:
        weights = graph.node("Reshape", args[0], np.array(shape, np.int64))
    weighted = graph.node("Mul", weights, args[1])
    return graph.node("ReduceSum", weighted, np.array([0], np.int64), keepdims=0)


# Layers


@_operator("layer_norm")
def _layer_norm(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    shape, weight, bias, eps = _options(args, None, None, None, 1e-5)[:4]
    ones = torch.ones(list(shape), dtype=_dtype(node)) if weight is None else weight
    given = [args[0], ones, *([] if bias is None else [bias])]
    return graph.node("LayerNormalization", *given, axis=-len(shape), epsilon=float(eps))


@_operator("rms_norm")
def _rms_norm(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    shape, weight, eps = _options(args, None, None, None)
    axes = np.arange(-len(shape), 0, dtype=np.int64)
    eps = torch.finfo(_dtype(node)).eps if eps is None else eps
    square = graph.node("ReduceMean", graph.node("Mul", args[0], args[0]), axes, keepdims=1)
    root = graph.node("Sqrt", graph.node("Add", square, _number(eps, _dtype(node))))
    found = graph.node("Div", args[0], root)
    return found if weight is None else graph.node("Mul", found, weight)


@_operator("conv2d")
def _conv(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    bias, stride, padding, dilation, groups = _options(args[1:], None, [1], [0], [1], 1)
    if isinstance(padding, str):
        raise ExportError("a convolution whose padding is a word is not exported to ONNX")
    stride, padding, dilation = (_pair(value) for value in (stride, padding, dilation))
    given = [args[0], args[1], *([] if bias is None else [bias])]
    shared: dict[str, Any] = {"strides": stride, "dilations": dilation, "group": int(groups)}
    return graph.node("Conv", *given, pads=padding * 2, **shared)


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [int(v) for v in (values * 2 if len(values) == 1 else values)]


@_operator("_native_batch_norm_legit_no_training")
def _batch_norm(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    x, weight, bias, mean, variance, _, eps = args
    ones = torch.ones_like(mean)
    given = (ones if weight is None else weight, torch.zeros_like(mean) if bias is None else bias)
    return [graph.node("BatchNormalization", x, *given, mean, variance, epsilon=float(eps))]


@_operator("batch_norm")
def _batch_norm_layer(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    x, weight, bias, mean, variance, training, _, eps, _ = args
    if training:
        raise ExportError("a normalisation by the batch itself is not exported to ONNX")
    return _batch_norm(graph, node, [x, weight, bias, mean, variance, 0.0, eps], options)[0]


@_operator("scaled_dot_product_attention")
def _attention(graph: Graph, node: fx.Node, args: list[Any], options: Any) -> Any:
    query, key, value = args[:3]
    mask, _, causal = _options(args[2:], None, 0.0, False)[:3]
    mask, causal = options.get("attn_mask", mask), options.get("is_causal", causal)
    q: Any = node.args[0]
    dtype, size = _dtype(node), int(q.meta["val"].shape[-1])
    turned = graph.node("Transpose", key, perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", query, turned)
    factor = options.get("scale")
    scores = graph.node("Mul", scores, _number(size**-0.5 if factor is None else factor, dtype))
    if causal:
        mask = _earlier(graph, query, key)
    if mask is not None:
        of_mask: Any = node.kwargs.get("attn_mask") or node.args[3:4]
        of_mask = of_mask[0] if isinstance(of_mask, tuple) and of_mask else of_mask
        is_flag = causal or _dtype(of_mask) == torch.bool
        none = _number(-torch.inf, dtype)
        scores = (
            graph.node("Where", mask, scores, none) if is_flag else graph.node("Add", scores, mask)
        )
    return graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)


def _earlier(graph: Graph, query: Any, key: Any) -> Any:
    """Which key each query sees if it sees none behind itself: `(query, key)`."""
    lengths = [graph.node("Shape", part, start=2, end=3) for part in (query, key)]
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    places = [
        graph.node(
            "Range", zero, Symbol(graph.node("Squeeze", length, np.array([0], np.int64))), one
        )
        for length in lengths
    ]
    rows = graph.node("Unsqueeze", places[0], np.array([1], np.int64))
    return graph.node("LessOrEqual", places[1], rows)
