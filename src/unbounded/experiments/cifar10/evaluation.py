"""Kept models looked at: corruptions, foreign images, ensembles, MC dropout, early exits.

FOLDER/evaluation/NAME.json   scores of a kept model
FOLDER/evaluation/NAME.npz    its probabilities of each set, for ensembles
FOLDER/evaluation.md, exits.svg, reliability.svg
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unbounded import atomic, metrics
from unbounded.baselines import dropping
from unbounded.data import foreign
from unbounded.data.corruptions import SEVERITIES, STRENGTHS, corrupted
from unbounded.data.images import Images
from unbounded.exits import left_early, running_mixtures
from unbounded.experiments import StudyError, records
from unbounded.experiments.cifar10.costs import flops_by_depth
from unbounded.experiments.cifar10.recipe import CifarRun, Recipe
from unbounded.files import load
from unbounded.likelihoods import Likelihood
from unbounded.likelihoods.categorical import ClassPrediction
from unbounded.model import UDN
from unbounded.predictive import predict
from unbounded.printing import show
from unbounded.training import ImageData

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
"""How sure a row's running mixture must be for it to stop; at 1 hardly any does."""
_ROWS = 2000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """What to look at.

    Attributes:
        folder: of the study.
        images: training and test part, with all classes.
        device: where models run.
        ood: sets of foreign images, see `foreign.read`.
        again: look again at what has been looked at.
        passes: over how many predictions of models with dropout are averaged.
    """

    folder: Path
    images: tuple[Images, Images]
    device: str
    ood: Sequence[str] = ()
    again: bool = False
    passes: int = 20

    def run(self) -> list[dict[str, Any]]:
        """Look at every kept model, then at ensembles of those that differ in their seed."""
        found = []
        names = sorted(path.stem for path in (self.folder / "models").glob("*.udn"))
        if not names:
            raise StudyError(f"{self.folder} has no kept models: train with --keep")
        for name in names:
            path = self.folder / "evaluation" / f"{name}.json"
            before = records.read_json(path) if path.is_file() and not self.again else None
            if before is None or not self._has_all(before):
                before = self._look(name)
                records.write_json(path, before)
                clean = before["scores"]["clean"]
                show(f"{name}: {clean['accuracy']:.2%}, log score {clean['log_score']:.4f}")
            found.append(before)
        ensembles = self._ensembles(found)
        dropped = [one.pop("dropout") for one in found if "dropout" in one]
        return found + ensembles + dropped

    def _has_all(self, before: Mapping[str, Any]) -> bool:
        """Whether an earlier look saw what is to be seen now."""
        passes = before["dropout"]["passes"] if "dropout" in before else self.passes
        return set(map(_stem, self.ood)) <= set(before["ood"]) and passes == self.passes

    def _look(self, name: str) -> dict[str, Any]:
        """Scores of one model on all sets, its early exits; writes its probabilities."""
        record = records.read_json(self.folder / "runs" / f"{name}.json")
        run = CifarRun(**{**record["run"], "classes": tuple(record["run"]["classes"])})
        recipe = Recipe(**record["recipe"])
        train, test = (part.only(*run.classes) if run.classes else part for part in self.images)
        parts = recipe.data(train, test, len(self.images[0].classes))
        data = parts.train
        built = run.build(recipe, data.x.shape[3], len(train.classes), data)
        path = self.folder / "models" / f"{name}.udn"
        model = load(path, layers=built.layers, device=self.device)
        x, y = np.asarray(parts.scored.x), np.asarray(parts.scored.y)
        probs, dropped = dict[str, Floats](), dict[str, Floats]()
        by_depth: Predicted | None = None  # of the test images
        for kind, images in self._sets(x):
            predicted = _predicted(model, data, images)
            by_depth = by_depth or predicted
            probs[kind] = predicted.mixture()
            if recipe.dropout:
                dropped[kind] = self._dropped(model, data, images)
        assert by_depth is not None
        _write(self.folder / "evaluation" / f"{name}.npz", y, probs)
        found = {"name": name, "members": 1, "run": record["run"], **scores_of(y, probs)}
        if len(by_depth.log_q) > 1:
            first = model.support()[0]
            work = flops_by_depth(model, data.like(x[:50], y[:50]).inputs().to(self.device))
            found["exits"] = early_exits(y, by_depth, model.likelihood, first, work)
            found["alone"] = each_depth(y, by_depth, first, work)
        if dropped:
            about = {"name": f"{name}-dropout", "members": 1, "passes": self.passes}
            found["dropout"] = {**about, "run": record["run"], **scores_of(y, dropped)}
        return dict(records.plain(found))

    def _sets(self, x: NDArray[np.uint8]) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """The test images, these corrupted in every way, and foreign ones."""
        yield "clean", x
        for kind in STRENGTHS:
            for severity in SEVERITIES:
                yield f"{kind}-{severity}", corrupted(x, kind, severity)
        for source in self.ood:
            yield f"ood-{_stem(source)}", foreign.read(source, (x.shape[1], x.shape[2]))

    def _dropped(self, model: UDN, data: ImageData, x: NDArray[np.uint8]) -> Floats:
        """MC dropout: the mean of the probabilities over passes with channels left out."""
        with dropping(model):
            passes = [_predicted(model, data, x).mixture() for _ in range(self.passes)]
        mean: Floats = np.mean(passes, axis=0)
        return mean

    def _ensembles(self, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Mixtures of the predictions of models that differ in nothing but their seed."""
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for one in found:
            run = CifarRun(**{**one["run"], "classes": tuple(one["run"]["classes"]), "seed": 0})
            groups.setdefault(run.name.removesuffix("-seed0"), []).append(one)
        ensembles = []
        for name, members in groups.items():
            if len(members) < 2:
                continue
            archives = [_read(self.folder / "evaluation" / f"{one['name']}.npz") for one in members]
            shared = [k for k in archives[0] if all(k in other for other in archives)]
            stacks = {k: np.stack([a[k] for a in archives]) for k in shared if k != "labels"}
            probs: dict[str, Floats] = {
                k: stack.astype(np.float64).mean(0) for k, stack in stacks.items()
            }
            about = {"name": f"{name}-ensemble", "members": len(members)}
            ensembles.append({**about, "run": members[0]["run"]})
            ensembles[-1] |= scores_of(archives[0]["labels"], probs)
        return [records.plain(one) for one in ensembles]


def scores_of(labels: NDArray[Any], probs: Mapping[str, Floats]) -> dict[str, Any]:
    """Scores of the clean and the corrupted images, AUROC of foreign ones, a reliability diagram.

    Args:
        labels: of the test images, `(rows,)`.
        probs: of each set, `(rows, class)`: "clean", "noise-1", …, "ood-NAME".
    """
    scores = {
        name: {
            "accuracy": metrics.accuracy(labels, found),
            "log_score": metrics.log_score(labels, found),
            "brier": metrics.brier(labels, found),
            "ece": metrics.ece(labels, found),
            "aurc": metrics.aurc(labels, found),
        }
        for name, found in probs.items()
        if not name.startswith("ood-")
    }
    inside = probs["clean"].max(1)
    ood = {
        name.removeprefix("ood-"): auroc(inside, found.max(1))
        for name, found in probs.items()
        if name.startswith("ood-")
    }
    diagram = metrics.reliability(labels, probs["clean"])
    points = {"confidence": diagram.confidence.tolist(), "accuracy": diagram.accuracy.tolist()}
    return {"scores": scores, "ood": ood, "reliability": points | {"count": diagram.count.tolist()}}


def auroc(inside: Floats, outside: Floats) -> float:
    """How often an image of the known kind gets more confidence than a foreign one; ties a half."""
    sure = np.concatenate([inside, outside]).clip(0, 1)
    labels = np.concatenate([np.ones(len(inside), int), np.zeros(len(outside), int)])
    return metrics.roc_auc(labels, np.stack([1 - sure, sure], 1))


class Predicted(NamedTuple):
    """What each depth says of some images."""

    log_probs: Tensor  # (depth, rows, class), in double precision
    log_q: Tensor  # (depth,)

    def mixture(self) -> Floats:
        """Σ_ℓ q(ℓ) p_ℓ, `(rows, class)`."""
        mixed: Floats = torch.tensordot(self.log_q.exp(), self.log_probs.exp(), 1).numpy()
        return mixed


def early_exits(
    labels: NDArray[Any],
    predicted: Predicted,
    likelihood: Likelihood,
    first: int,
    work: Sequence[float],
    thresholds: Iterable[float] = THRESHOLDS,
) -> list[dict[str, float]]:
    """What comes of it if each row stops at the first depth whose running mixture is sure.

    Args:
        labels: `(rows,)`.
        predicted: by each depth.
        likelihood: of the model.
        first: the depth that comes first.
        work: FLOPs of an image up to each depth, `(depth,)`.
        thresholds: how sure, as the probability of the likeliest class.

    Returns:
        For each threshold accuracy, log score, and mean number of layers and FLOPs.
    """
    found = []
    for threshold in thresholds:
        early = left_early(likelihood, predicted.log_q, predicted.log_probs, threshold, first)
        chosen, depths = early.probs.numpy(), early.depths.numpy()
        found.append(
            {
                "threshold": float(threshold),
                "accuracy": metrics.accuracy(labels, chosen),
                "log_score": metrics.log_score(labels, chosen),
                "layers": float(depths.mean()),
                "flops": float(np.asarray(work)[depths - first].mean()),
            }
        )
    return found


def each_depth(
    labels: NDArray[Any], predicted: Predicted, first: int, work: Sequence[float]
) -> list[dict[str, float]]:
    """The same if all rows stop at one depth."""
    return [
        {
            "layers": float(first + place),
            "flops": float(work[place]),
            "accuracy": metrics.accuracy(labels, mixture.log_probs.exp().numpy()),
        }
        for place, mixture in enumerate(running_mixtures(predicted.log_q, predicted.log_probs))
    ]


def _predicted(model: UDN, data: ImageData, x: NDArray[np.uint8]) -> Predicted:
    """What each depth says of each image."""
    found = []
    autocast = model.anchor.is_cuda
    for start in range(0, len(x), _ROWS):
        piece = x[start : start + _ROWS]
        inputs = data.like(piece, np.zeros(len(piece), np.int64)).inputs().to(model.anchor.device)
        with torch.autocast(model.anchor.device.type, torch.bfloat16, enabled=autocast):
            prediction = predict(model, inputs)
        assert isinstance(prediction, ClassPrediction)
        found.append(prediction.log_probs_by_depth.double().cpu())
    log_q = model.depth_log_probs().detach().double().cpu().log_softmax(0)
    return Predicted(torch.cat(found, 1), log_q)


def _stem(source: str) -> str:
    return Path(source).stem


def _write(path: Path, labels: NDArray[Any], probs: Mapping[str, Floats]) -> None:
    """The probabilities of each set, in single precision."""
    arrays: dict[str, Any] = {name: found.astype(np.float32) for name, found in probs.items()}
    memory = BytesIO()
    np.savez_compressed(memory, **{"labels": labels, **arrays})
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, memory.getvalue())


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}
