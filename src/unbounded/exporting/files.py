"""`ub.export`: traced, written beside its place, compared with our own predictions, then kept."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbounded import atomic, trees
from unbounded.exporting.graphs import (
    IR_VERSION,
    ML_OPSET,
    OPSET,
    ExportError,
    Graph,
    onnx_type,
    translate,
)
from unbounded.exporting.programs import Arrays, Exportable, of_estimator, of_network

FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
"""What can be written, and how such files end."""
TOLERANCE = 3e-5
"""How far a file may be from our own predictions, in probabilities or deviations of a target."""
ABOUT = "unbounded"
"""Under what name the description stands in a file."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: of the file.
        format: "onnx" or "pt2".
        inputs: name, kind and meaning of each input, in order.
        outputs: their names, in order.
        rows: how many rows were compared.
        difference: the largest one from our own predictions, as `TOLERANCE` counts it.
    """

    path: Path
    format: str
    inputs: list[dict[str, Any]]
    outputs: list[str]
    rows: int
    difference: float


def export(
    model: Any,
    path: str | Path,
    example: Any = None,
    *,
    to: str | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
) -> Exported:
    """Write a model as one file for other programs, with the preprocessing of its table inside.

    The file predicts the mixture over depths (and members) for any number of rows, in single
    precision behind the preprocessing. Outputs are "probabilities" and "prediction", or "mean",
    "sd" and "quantiles" `(batch, quantile)`. It is compared with this library's own prediction
    before it is kept. docs/export.md tells what goes in and comes out.

    Args:
        model: a `TableModel`, a fitted estimator, a `UDN`, or a frozen one (`UDN.freeze`).
        path: of the file, replaced if it is there.
        example: rows to trace and compare with: inputs `(batch, …)` of a `UDN`, rows of an
            estimator, a table of a `TableModel`. Of the last two they are made up by default.
        to: "onnx" or "pt2", what `torch.export.load` reads; by the path's ending by default.
        quantiles: of a number, strictly between 0 and 1; none to leave them out.

    Raises:
        ExportError: if a part of the model has no translation, if a package is missing, or if
            the file does not predict the same; nothing is written then.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".") if to is None else to
    if kind not in FORMATS:
        raise ExportError(
            f"a model is exported to {' or '.join(FORMATS)}, got {kind!r}: say to='onnx' or end "
            "the path so"
        )
    if kind == "onnx":
        packages()
    atomic.check_target(path)
    made = _exportable(model, example, list(quantiles))
    with _quietly(), torch.inference_mode(False):
        try:
            program = torch.export.export(
                made.module, (made.few(),), dynamic_shapes=(made.dynamic(),), strict=False
            )
        except Exception as error:
            line = " ".join(str(error).split())[:300]
            raise ExportError(f"torch cannot trace the model: {line}") from error
        made.about |= _description(made, kind)
        with atomic.replacing(path) as temporary:
            if kind == "pt2":
                found = _write_program(program, made, temporary)
            else:
                found = _write_graph(program, made, temporary)
            difference = _compare(made, found)
    rows = trees.num_rows(made.example)
    inputs, outputs = made.about["inputs"], made.about["outputs"]
    return Exported(path, kind, inputs, outputs, rows, difference)


def packages() -> None:
    """An ExportError with the next step if what ONNX needs is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"ONNX needs the package {error.name}: pip install 'unbounded[export]'"
        ) from None


def _exportable(model: Any, example: Any, levels: list[float]) -> Exportable:
    from unbounded.estimators.base import UDNEstimator
    from unbounded.frozen import Frozen
    from unbounded.model import UDN
    from unbounded.tables import TableModel

    if isinstance(model, UDN | Frozen):
        return of_network(model, example, levels)
    if isinstance(model, UDNEstimator):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(model)
        return of_estimator(model, levels, example)
    if isinstance(model, TableModel):
        names = model.target.classes if model.target.is_classes else None
        frame = None
        if example is not None:
            table = model.open(example)
            model.encoding.check_names(table, model.target.name)
            frame = next(iter(table.chunks(rows=1024))).frame
        made = of_estimator(model.estimator, levels, frame, model.encoding, names)
        made.about["target"] = model.target.name
        return made
    raise ExportError(
        f"a TableModel, an estimator, a UDN or a frozen one can be exported, got "
        f"{type(model).__name__}"
    )


def _description(made: Exportable, kind: str) -> dict[str, Any]:
    """Plain data that travels in the file: what it takes and gives."""
    from unbounded import __version__

    parts = dict(zip(made.names, trees.leaves(made.example), strict=True))
    if made.inputs:
        inputs = [one.expects(as_codes=kind == "pt2") for one in made.inputs]
    else:
        inputs = [
            {
                "name": name,
                "kind": str(part.dtype).removeprefix("torch."),
                "expects": "rows of shape " + " × ".join(map(str, _sizes(made, part)[1:])),
            }
            for name, part in parts.items()
        ]
    with torch.no_grad():
        outputs = list(made.module(made.few()))
    classes = None if made.classes is None else made.classes.tolist()
    found = {"version": __version__, "inputs": inputs, "outputs": outputs, "classes": classes}
    mixture: Any = getattr(made.module, "mixture", made.module)
    return found | ({"quantiles": list(mixture.levels)} if "quantiles" in outputs else {})


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warnings about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# torch's own format


def _write_program(program: Any, made: Exportable, path: Path) -> Arrays:
    """Write, read again, run."""
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={f"{ABOUT}.json": json.dumps(made.about)})
    with open(path, "rb") as file:
        read = torch.export.load(file).module()
    with torch.inference_mode():
        found = read(made.example)
        one = read(trees.rows(made.example, slice(0, 1)))
    _check_first(one, found)
    return {name: value.numpy() for name, value in found.items()}


def _check_first(one: Any, found: Any) -> None:
    """A batch of another size must do, too."""
    for name, value in one.items():
        alone, among = np.asarray(value), np.asarray(found[name])
        among = among if name == "depth_probs" else among[:1]
        same = alone.shape == among.shape
        if same and alone.dtype.kind == "f":
            same = bool(np.allclose(alone, among, rtol=TOLERANCE, atol=TOLERANCE))
        if not same:
            raise ExportError(f"the file's {name} of a row depends on the rows beside it")


# ONNX


def _write_graph(program: Any, made: Exportable, path: Path) -> Arrays:
    """Translate, write, let onnxruntime read and run it."""
    import onnx
    import onnxruntime

    built = _built(program, made)
    onnx.checker.check_model(built)
    data = built.SerializeToString()
    path.write_bytes(data)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, ["CPUExecutionProvider"])
        feeds = made.texts or _arrays(made)
        named = {i.name: feeds[n] for i, n in zip(session.get_inputs(), feeds, strict=True)}
        names = made.about["outputs"]
        found = dict(zip(names, session.run(names, named), strict=True))
        first = {name: value[:1] for name, value in named.items()}
        one = dict(zip(names, session.run(names, first), strict=True))
    except Exception as error:
        line = " ".join(str(error).split())[:300]
        raise ExportError(f"onnxruntime cannot run the file: {line}") from error
    _check_first(one, found)
    if made.classes is not None:
        places = {value: place for place, value in enumerate(made.classes.tolist())}
        found["prediction"] = np.array([places[value] for value in found["prediction"].tolist()])
    return found


def _arrays(made: Exportable) -> Arrays:
    parts = zip(made.names, trees.leaves(made.example), strict=True)
    return {name: part.numpy() for name, part in parts}


def _built(program: Any, made: Exportable) -> Any:
    """The whole model: texts to codes, the program, codes to classes."""
    from onnx import TensorProto, helper

    graph = Graph()
    outputs = made.about["outputs"]
    taken = set(outputs)
    leaves = dict(zip(made.names, trees.leaves(made.example), strict=True))
    coded = {one.name: one for one in made.inputs if one.is_text}
    inputs, given = [], []
    for place, (name, part) in enumerate(leaves.items()):
        # A column may be called like an output, or like nothing that a file may hold.
        public = f"{name} (input)" if name in taken else name or "(empty)"
        if made.inputs:
            made.about["inputs"][place]["name"] = public
        kind = TensorProto.STRING if name in coded else onnx_type(part.dtype)
        inputs.append(helper.make_tensor_value_info(public, kind, _sizes(made, part)))
        given.append(_codes(graph, public, coded[name]) if name in coded else public)
    results = translate(program, graph, given)
    made_outputs = []
    for name, result in zip(outputs, results, strict=True):
        if name == "prediction" and made.classes is not None:
            result = graph.node("Gather", _class_values(made.classes), result, axis=0)
        graph.nodes.append(helper.make_node("Identity", [graph.name(result)], [name]))
        made_outputs.append(_output(made, name))
    built = helper.make_graph(graph.nodes, ABOUT, inputs, made_outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(built, opset_imports=opsets, ir_version=IR_VERSION)
    model.producer_name, model.producer_version = ABOUT, made.about["version"]
    helper.set_model_props(model, {ABOUT: json.dumps(made.about)})
    return model


def _codes(graph: Graph, name: str, one: Any) -> str:
    """The codes of a column of texts."""
    found: str = graph.node(
        "LabelEncoder",
        name,
        domain="ai.onnx.ml",
        keys_strings=list(one.codes),
        values_int64s=list(one.codes.values()),
        default_int64=one.other,
    )
    return found


def _class_values(classes: Any) -> Any:
    """Classes as ONNX can hold them: numbers, truth values or texts."""
    if classes.dtype.kind in "iub":
        return classes.astype(bool if classes.dtype.kind == "b" else np.int64)
    return classes.astype(np.float64) if classes.dtype.kind == "f" else classes.astype(str)


def _sizes(made: Exportable, part: Any) -> list[Any]:
    """The sizes of an input, those of any size by name."""
    axes = made.axes(part)
    return [axes.get(axis, int(size)) for axis, size in enumerate(part.shape)]


def _output(made: Exportable, name: str) -> Any:
    from onnx import TensorProto, helper

    with torch.no_grad():
        value = made.module(made.few())[name]
    kind = onnx_type(value.dtype)
    if name == "prediction" and made.classes is not None:
        letter = made.classes.dtype.kind
        kinds = {"i": TensorProto.INT64, "u": TensorProto.INT64, "b": TensorProto.BOOL}
        kind = {**kinds, "f": TensorProto.DOUBLE}.get(letter, TensorProto.STRING)
    first = [] if name == "depth_probs" else ["batch"]
    return helper.make_tensor_value_info(name, kind, [*first, *[None] * (value.dim() - len(first))])


# The check


def _compare(made: Exportable, found: Arrays) -> float:
    """The largest difference from our own predictions; an ExportError if it is too large."""
    worst = 0.0
    scale = np.squeeze(np.asarray(made.scale, np.float64))
    for name, expected in made.reference.items():
        if name == "prediction":
            continue
        # Means and quantiles are compared in deviations from the middle of the target.
        center = np.squeeze(made.center) if name in ("mean", "quantiles") else 0.0
        ours, theirs = (
            (part.astype(np.float64) - center) / scale for part in (expected, found[name])
        )
        if ours.shape != theirs.shape:
            raise ExportError(f"the file's {name} has the shape {theirs.shape}, not {ours.shape}")
        gap = np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours))
        difference = float(gap.max(initial=0.0)) if np.isfinite(gap).all() else np.inf
        if difference > TOLERANCE:
            raise ExportError(
                f"the file's {name} differs from our own by {difference:.2g}, more than "
                f"{TOLERANCE:g}: nothing was written"
            )
        worst = max(worst, difference)
    if "prediction" in found:
        _compare_answers(made.reference["probabilities"], found["prediction"])
    return worst


def _compare_answers(probs: Any, answers: Any) -> None:
    """Answers must be the most probable ones, ties within the tolerance aside."""
    if answers.shape == probs.shape:  # labels: 0 or 1 each
        chosen, best = np.where(answers == 1, probs, 1 - probs), np.maximum(probs, 1 - probs)
    else:
        chosen = np.take_along_axis(probs, answers[..., None], -1)[..., 0]
        best = probs.max(-1)
    if not (chosen >= best - 2 * TOLERANCE).all():
        raise ExportError("the file's prediction is not the most probable answer")
