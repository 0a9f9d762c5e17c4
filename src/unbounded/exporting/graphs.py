"""From a program that torch has traced to an ONNX graph, operation by operation.

The program is traced from the very modules that predict here, so no formula stands twice. Whatever
does not depend on the input is computed now and becomes a constant.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
"""Versions of ONNX's operators and file format: those that runtimes of 2023 on can read."""

_KEPT = (  # ONNX has these, or they are shorter here than what torch makes of them
    *("linear", "layer_norm", "rms_norm", "gelu", "mish", "silu", "softplus", "log_sigmoid"),
    *("softmax.int", "log_softmax.int", "logsumexp", "baddbmm", "conv2d", "embedding"),
    *("scaled_dot_product_attention", "addcmul", "special_ndtr", "square"),
)
_IGNORED = ("aten._assert_tensor_metadata.default", "aten._assert_scalar.default")


class ExportError(ValueError):
    """A model that cannot be exported so; says what stands in the way and what to do."""


class UnknownOperationError(ExportError):
    """An operation that has no translation."""


class Symbol(str):
    """The name of a whole number that is known when the graph runs, such as the batch size."""


class Graph:
    """Nodes and constants of an ONNX graph under construction."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}
        self._count = 0

    def node(
        self, kind: str, *inputs: Any, outputs: int = 1, domain: str = "", **options: Any
    ) -> Any:
        """Add an operation; the name of its result, or a list of names."""
        self._count += 1
        names = [f"{kind.lower()}_{self._count}_{place}" for place in range(outputs)]
        given = [self.name(value) for value in inputs]
        made = self._helper.make_node(kind, given, names, domain=domain, **options)
        self.nodes.append(made)
        return names if outputs > 1 else names[0]

    def name(self, value: Any) -> str:
        """The name of a value; tensors, arrays and lists become constants, None an empty place."""
        if value is None:
            return ""
        if isinstance(value, str):
            return str(value)
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        array = np.asarray(value, None if isinstance(value, np.ndarray) else np.int64)
        if array.dtype.kind in "US":
            array = array.astype(object)
        key = (
            str(array.dtype),
            array.shape,
            str(array.tolist()) if array.dtype == object else array.tobytes(),
        )
        if key not in self._known:
            self._known[key] = f"constant_{len(self._known)}"
            array = np.ascontiguousarray(array).reshape(array.shape)
            self.constants.append(self._numpy.from_array(array, self._known[key]))
        return self._known[key]

    def cast(self, value: Any, dtype: torch.dtype) -> str:
        """A value in another type."""
        return self.node("Cast", value, to=onnx_type(dtype))

    def shape(self, sizes: Sequence[Any]) -> Any:
        """A shape: a constant, with one −1 where a single size is unknown, or put together."""
        unknown = [size for size in sizes if isinstance(size, str)]
        told = -1 not in [size for size in sizes if isinstance(size, int)]
        if len(unknown) <= told:
            return np.array(
                [-1 if isinstance(size, str) else int(size) for size in sizes], np.int64
            )
        return self.sizes(sizes)

    def sizes(self, sizes: Sequence[Any]) -> str:
        """A shape whose sizes are all told."""
        zero = np.array([0], np.int64)
        parts = [
            self.node("Unsqueeze", size, zero)
            if isinstance(size, str)
            else np.array([int(size)], np.int64)
            for size in sizes
        ]
        return self.node("Concat", *parts, axis=0)


def onnx_type(dtype: torch.dtype) -> int:
    """ONNX's number of a type."""
    from onnx import TensorProto

    known = {
        torch.float32: TensorProto.FLOAT,
        torch.float64: TensorProto.DOUBLE,
        torch.int64: TensorProto.INT64,
        torch.int32: TensorProto.INT32,
        torch.bool: TensorProto.BOOL,
    }
    if dtype not in known:
        raise ExportError(f"numbers of the type {dtype} are not exported to ONNX")
    return int(known[dtype])


Operator = Callable[[Graph, fx.Node, list[Any], dict[str, Any]], Any]


def translate(program: ExportedProgram, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Add a program to a graph.

    Args:
        program: of tensors.
        graph: to add to.
        inputs: the names of the program's inputs, in order.

    Returns:
        The names of its outputs, in order.

    Raises:
        ExportError: if an operation has no translation.
    """
    before = len(graph.nodes)
    try:
        return _added(program, graph, inputs)
    except UnknownOperationError:
        # Taken apart into fewer kinds; which takes longer than all the rest.
        del graph.nodes[before:]
        return _added(program.run_decompositions(_decompositions()), graph, inputs)


def _added(program: ExportedProgram, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Add a program as it is."""
    from unbounded.exporting.reductions import OPERATORS

    values: dict[fx.Node, Any] = {}
    constants = _constants(program)
    given = iter(inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = constants[node.name] if node.name in constants else next(given)
        elif node.op == "output":
            return [values[one] for one in fx.node.map_arg(node.args[0], lambda n: n)]
        elif node.op == "get_attr":
            values[node] = getattr(program.graph_module, node.target)
        elif str(node.target) not in _IGNORED:
            values[node] = _translated(node, values, graph, OPERATORS)
    raise AssertionError("a program has an output")


def _translated(
    node: fx.Node, values: dict[fx.Node, Any], graph: Graph, operators: dict[str, Operator]
) -> Any:
    args: Any = fx.node.map_arg(node.args, values.__getitem__)
    options: Any = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    if not any(isinstance(values[one], str | list) for one in node.all_input_nodes):
        assert callable(node.target)
        with torch.no_grad():
            return node.target(*args, **options)
    name = getattr(node.target, "__name__", "") if node.target in _PYTHON else str(node.target)
    if name not in operators:
        raise UnknownOperationError(
            f"the operation {name} has no translation to ONNX: export to pt2, or write the layer "
            "with other operations"
        )
    return operators[name](graph, node, list(args), dict(options))


_PYTHON = (operator.add, operator.sub, operator.mul, operator.floordiv)


def _constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Parameters, buffers and constants by the names of their placeholders."""
    signature = program.graph_signature
    state: dict[str, Any] = {**program.state_dict, **program.constants}
    named = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {place: state[name] for place, name in named.items()}


def _decompositions() -> Any:
    table = torch.export.default_decompositions()
    for name in _KEPT:
        operation, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, operation), overload or "default"), None)
    return table
