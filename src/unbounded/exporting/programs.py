"""What is exported: inputs, preprocessing, networks and the mixture, as one module of torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded import trees
from unbounded.exporting.columns import Columns, Input, frame_columns, made_up_rows
from unbounded.exporting.graphs import ExportError
from unbounded.frozen import Frozen
from unbounded.layers import Dense, Layers, TransformerLayers
from unbounded.likelihoods import GaussianPrediction, Prediction
from unbounded.model import UDN
from unbounded.predictive import combine

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator
    from unbounded.tables.encoding import Encoding

Arrays = dict[str, NDArray[Any]]
_ROWS = 24  # made up, for the check
_PARTS = 16  # of a quantile's bracket at a time: a graph has every step written out
_SEVERAL = 3  # rows that a program is traced with: not one, which torch would take for a constant


class Mixture(nn.Module):
    """Networks, and their mixture as named outputs.

    Args:
        members: frozen networks; all count the same.
        levels: of the quantiles of a number; none are given without.
        center, scale: of each target, by which numbers come into its units; None: they have them.
        asked: for each target the levels at which its mixture has these quantiles, if others
            (`UDNRegressor.levels_`).
    """

    at: Tensor  # (level,), or one after another those of each target
    one: Tensor  # ()
    center: Tensor  # (target,)
    scale: Tensor  # (target,)

    def __init__(
        self,
        members: Sequence[Frozen],
        levels: Sequence[float] = (),
        center: Any = None,
        scale: Any = None,
        single: bool = False,
        asked: Sequence[Sequence[float]] = (),
    ):
        super().__init__()
        self.members = nn.ModuleList(members)
        for place, member in enumerate(members):
            # Normalised anew, as predictions do it.
            self.register_buffer(f"log_q{place}", member.depth_probs.log().log_softmax(0))
        self.levels = tuple(float(level) for level in levels)
        if not all(0 < level < 1 for level in self.levels):
            raise ValueError(f"quantiles must be strictly between 0 and 1, got {list(levels)}")
        like = members[0].depth_probs
        self.targets = max(1, len(asked))
        at = [level for own in asked for level in own] if asked else self.levels
        self.register_buffer("at", torch.tensor(at, dtype=torch.float64).to(like))
        self.register_buffer("one", torch.ones(()).to(like))
        self.in_units = center is not None
        if self.in_units:
            self.register_buffer("center", torch.as_tensor(center, dtype=torch.float64))
            self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))
        self.single = single

    def forward(self, x: trees.Tree) -> dict[str, Tensor]:
        """The outputs by name, the batch their first axis."""
        found: list[Prediction] = []
        member: Any
        for place, member in enumerate(self.members):
            outputs, _ = member(x)
            found += member.likelihood.predictions(outputs, getattr(self, f"log_q{place}"))
        prediction: Any = found[0] if len(found) == 1 else combine(found)
        likelihood = prediction.likelihood
        if isinstance(prediction, GaussianPrediction):
            return self._numbers(prediction)
        if likelihood.has_verdicts:
            probs = prediction.probs
            answers, _ = likelihood.verdict(probs, self.one)
            return {"probabilities": probs, "prediction": answers}
        if hasattr(prediction, "probs"):
            return {"probabilities": prediction.probs}
        weights = prediction.depth_log_probs.exp()
        return {"outputs": prediction.outputs.movedim(1, 0), "depth_probs": weights}

    def _numbers(self, prediction: GaussianPrediction) -> dict[str, Tensor]:
        """Mean, standard deviation and quantiles, `(batch, …)`."""
        found = {"mean": prediction.mean, "sd": prediction.variance.sqrt()}
        if self.levels:
            found["quantiles"] = self._quantiles(prediction).movedim(0, 1)
        if self.in_units:
            found = {name: value.double() * self.scale for name, value in found.items()}
            found = {n: v if n == "sd" else v + self.center for n, v in found.items()}
        if self.single:
            found = {name: value[..., 0] for name, value in found.items()}
        return found

    def _quantiles(self, prediction: GaussianPrediction) -> Tensor:
        """`(level, batch, …)`."""
        found = prediction.quantile_at(self.at, _PARTS)
        if self.targets == 1:
            return found
        each = len(self.levels)
        own = [found[k * each : (k + 1) * each, :, k] for k in range(self.targets)]
        return torch.stack(own, -1)


class TableProgram(nn.Module):
    """Columns of a table, encoded and scaled, then the mixture."""

    def __init__(self, columns: Columns, mixture: Mixture):
        super().__init__()
        self.columns, self.mixture = columns, mixture

    def forward(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns by name, `(batch, 1)`."""
        found: dict[str, Tensor] = self.mixture(self.columns(columns))
        return found


class RowProgram(nn.Module):
    """Rows of numbers, gaps filled and scaled, then the mixture."""

    def __init__(self, scaling: Any, mixture: Mixture, fills: bool, whole: bool):
        super().__init__()
        self.mixture, self.fills, self.whole = mixture, fills, whole
        self.register_buffer("shift", torch.from_numpy(scaling.center.copy()))
        self.register_buffer("spread", torch.from_numpy(scaling.scale.copy()))
        self.is_plain = not scaling.center.any() and bool((scaling.scale == 1).all())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Rows `(batch, column)` in double precision."""
        shift: Any = self.shift
        if self.fills:
            x = torch.where(x.isnan(), shift, x)
        if not self.is_plain:
            x = (x - shift) / self.spread
        found: dict[str, Tensor] = self.mixture(x.long() if self.whole else x.float())
        return found


class Exportable:
    """A module with examples of its inputs, and what is to be told of them.

    Attributes:
        module: gives a dict of tensors.
        inputs: of columns; empty where there are none.
        names: of the inputs, in order.
        example: inputs to trace and to check with, a tree of tensors with codes for texts.
        reference: what this library predicts for them, by the name of the output.
        center, scale: of the target: in which units numbers are compared.
        classes: in the order of the probabilities; None if there are none.
        about: plain data for the file.
    """

    def __init__(self, module: nn.Module, example: trees.Tree, about: dict[str, Any]):
        self.module = module.eval().requires_grad_(False)
        self.example, self.about = example, about
        self.inputs: list[Input] = []
        self.names = _names(example)
        self.reference: Arrays = {}
        self.center: Any = 0.0
        self.scale: Any = 1.0
        self.classes: NDArray[Any] | None = None
        self.texts: Arrays = {}  # of the example's columns, as an ONNX file takes them

    def few(self) -> trees.Tree:
        """Some rows to trace with."""
        return trees.rows(self.example, slice(0, _SEVERAL))

    def axes(self, part: Tensor) -> dict[int, str]:
        """The axes of a part of the input that may have any size, by name."""
        if not isinstance(self._layers(), TransformerLayers):
            return {0: "batch"}
        return {0: "batch", **dict.fromkeys(range(1, part.dim()), "time")}

    def dynamic(self) -> Any:
        """The same as `torch.export` takes it."""
        longest = getattr(self._layers(), "max_length", None) or 1 << 20
        sizes = {
            "batch": torch.export.Dim("batch", min=1, max=1 << 30),
            "time": torch.export.Dim("time", min=2, max=longest),
        }
        return trees.mapped(
            lambda part: {axis: sizes[name] for axis, name in self.axes(part).items()}, self.example
        )

    def _layers(self) -> Any:
        """Those of a lone network, else None."""
        members: Any = getattr(self.module, "members", None)
        return None if members is None else members[0].layers


def of_network(model: "UDN | Frozen", example: Any, levels: Sequence[float]) -> Exportable:
    """A lone network; its inputs come as they are."""
    frozen = model if isinstance(model, Frozen) else model.freeze()
    whole = getattr(frozen.layers, "integer_inputs", False)
    layers = frozen.layers
    example = made_up_inputs(layers) if example is None else example
    layers.check_inputs(example)
    dtype = None if whole else torch.float32
    example = trees.moved(example, torch.device("cpu"), dtype)
    if trees.num_rows(example) < _SEVERAL:
        raise ExportError(f"give at least {_SEVERAL} rows to try the network with")
    if isinstance(layers, TransformerLayers) and trees.first(example).shape[1] < 2:
        raise ExportError("give sequences of at least 2 tokens to try the network with")
    mixture = Mixture([_single(frozen)], levels)
    made = Exportable(mixture, example, {"kind": "network"})
    made.reference = _eager(_double(frozen), example, levels)
    return made


def made_up_inputs(layers: Layers, shape: Sequence[int] | None = None) -> Tensor:
    """Inputs of some rows, random ones: tokens, or numbers of this shape.

    Args:
        layers: that take them.
        shape: of one row; dense layers and transformers tell it themselves.
    """
    random = torch.Generator().manual_seed(0)
    if isinstance(layers, TransformerLayers):
        (time,) = shape or (min(8, layers.max_length or 8),)
        return torch.randint(layers.vocabulary, (_ROWS, time), generator=random)
    if shape is None:
        if not isinstance(layers, Dense):
            raise ExportError(
                f"{type(layers).__name__} does not say what its inputs look like: give some, "
                "ub.export(model, path, x), or on the command line the --shape of one"
            )
        shape = (layers.in_features,)
    return torch.randn(_ROWS, *shape, generator=random)


def _eager(frozen: Frozen, example: trees.Tree, levels: Sequence[float]) -> Arrays:
    """What the network predicts in double precision, without anything being traced."""
    mixture = Mixture([frozen], levels)
    with torch.inference_mode():
        found = mixture(trees.moved(example, torch.device("cpu"), torch.float64))
    return {name: value.numpy() for name, value in found.items()}


def of_estimator(
    estimator: "UDNEstimator",
    levels: Sequence[float],
    rows: Any = None,
    encoding: "Encoding | None" = None,
    classes: Sequence[str] | None = None,
) -> Exportable:
    """A fitted estimator with the encoding of its columns, its own or that of a table's model.

    Args:
        estimator: fitted.
        levels: of the quantiles.
        rows: to check with: a frame, or numbers `(rows, column)`; made up by default.
        encoding: of a `TableModel`; the estimator then has numbers.
        classes: their names in a table, in the order of the estimator's.
    """
    from unbounded.estimators import UDNClassifier
    from unbounded.estimators.frames import to_frame
    from unbounded.tables.reading import Table

    is_classes = isinstance(estimator, UDNClassifier)
    units: dict[str, Any] = {}
    if not is_classes:
        scaling = estimator.target_scaling_
        units = {"center": scaling.center, "scale": scaling.scale}
        units["single"] = estimator._single_target
        units["asked"] = estimator._asked(np.array(levels)) if levels else ()
    mixture = Mixture([_single(m.freeze()) for m in estimator.members_], levels, **units)
    encoded = encoding if encoding is not None else estimator.encoding_
    given: Any
    if encoded is None:
        x = _numbers(estimator, rows)
        program: nn.Module = RowProgram(
            estimator.input_scaling_,
            mixture,
            fills=bool(estimator.standardize),
            whole=estimator.model_.layers.integer_inputs,
        )
        made = Exportable(program, torch.from_numpy(x), {"kind": "rows"})
        given = x
    else:
        frame = made_up_rows(encoded, _ROWS) if rows is None else rows
        if encoding is None:
            names = [column.name for column in encoded.columns]
            is_named = hasattr(estimator, "feature_names_in_")
            if rows is None:
                frame = _whole_rows(frame, names, is_named)
            chosen = [column.name for column in encoded.columns if column.kind == "category"]
            given, frame = frame, to_frame(frame, chosen, None if is_named else names)
        frame = next(iter(Table(frame, missing=encoded.missing).chunks(rows=1024))).frame
        if encoding is not None:
            given = encoding.transform_frame(frame)
        columns = Columns(encoded)
        codes = frame_columns(encoded, columns.inputs, frame, as_codes=True)
        example = {name: torch.from_numpy(value) for name, value in codes.items()}
        made = Exportable(TableProgram(columns, mixture), example, {"kind": "table"})
        made.inputs = columns.inputs
        made.texts = frame_columns(encoded, columns.inputs, frame, as_codes=False)
        given = given[: len(frame)]
    made.reference = _reference(estimator, given, levels, is_classes)
    made.center, made.scale = units.get("center", 0.0), units.get("scale", 1.0)
    if is_classes and not estimator._num_labels:
        made.classes = np.array(estimator.classes_ if classes is None else classes)
    return made


def _whole_rows(frame: Any, names: Sequence[str], is_named: bool) -> Any:
    """Made-up rows with all columns of training, as an array where these had no names."""
    frame = frame.reindex(columns=list(names))
    if is_named:
        return frame
    if all(kind == np.float64 for kind in frame.dtypes):
        return frame.to_numpy()
    return frame.astype(object).where(frame.notna(), None).to_numpy()


def _reference(estimator: Any, x: Any, levels: Sequence[float], is_classes: bool) -> Arrays:
    """What the estimator itself predicts."""
    if is_classes:
        return {"probabilities": estimator.predict_proba(x)}
    mean, sd = estimator.predict(x, return_std=True)
    found = {"mean": mean, "sd": sd}
    if levels:
        found["quantiles"] = np.moveaxis(estimator.predict_quantiles(x, list(levels)), 0, 1)
    return found


def _numbers(estimator: Any, rows: Any) -> NDArray[np.float64]:
    """Rows to check with, `(rows, column)`, some with gaps where these are filled."""
    if rows is not None:
        return np.ascontiguousarray(np.asarray(rows, np.float64)[:1024])
    scaling, random = estimator.input_scaling_, np.random.default_rng(0)
    x = scaling.undo(random.standard_normal((_ROWS, estimator.n_features_in_)))
    if estimator.model_.layers.integer_inputs:
        raise ExportError("layers that take whole numbers: give rows to try them with")
    if estimator.standardize:
        x[random.random(x.shape) < 0.1] = np.nan
    return np.ascontiguousarray(x)


def _single(frozen: Frozen) -> Frozen:
    return _moved(frozen, torch.float32)


def _double(frozen: Frozen) -> Frozen:
    return _moved(frozen, torch.float64)


def _moved(frozen: Frozen, dtype: torch.dtype) -> Frozen:
    """A copy on the CPU in this precision."""
    import copy

    return copy.deepcopy(frozen).to("cpu", dtype)


def _names(example: trees.Tree) -> list[str]:
    """What the parts of an input are called."""
    if isinstance(example, Tensor):
        return ["x"]
    if isinstance(example, dict):
        return [str(name) for name, part in example.items() if part is not None]
    return [f"x{place}" for place, part in enumerate(example) if part is not None]
