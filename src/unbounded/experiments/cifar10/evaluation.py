"""Kept models looked at more closely: corruptions, foreign images, ensembles, early exits.

FOLDER/evaluation/NAME.json   scores of a kept model
FOLDER/evaluation/NAME.npz    its probabilities of each set, for ensembles
FOLDER/evaluation.md, exits.svg, reliability.svg
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unbounded import atomic, metrics
from unbounded.data import foreign
from unbounded.data.corruptions import SEVERITIES, STRENGTHS, corrupted
from unbounded.data.images import Images
from unbounded.experiments import StudyError, records
from unbounded.experiments.cifar10.costs import flops_by_depth
from unbounded.experiments.cifar10.recipe import CifarRun, Recipe
from unbounded.files import load
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
    """

    folder: Path
    images: tuple[Images, Images]
    device: str
    ood: Sequence[str] = ()
    again: bool = False

    def run(self) -> list[dict[str, Any]]:
        """Look at every kept model, then at ensembles of those that differ in their seed."""
        found = []
        names = sorted(path.stem for path in (self.folder / "models").glob("*.udn"))
        if not names:
            raise StudyError(f"{self.folder} has no kept models: train with --keep")
        for name in names:
            path = self.folder / "evaluation" / f"{name}.json"
            before = records.read_json(path) if path.is_file() and not self.again else None
            if before is None or not set(map(_stem, self.ood)) <= set(before["ood"]):
                before = self._look(name)
                records.write_json(path, before)
                clean = before["scores"]["clean"]
                show(f"{name}: {clean['accuracy']:.2%}, log score {clean['log_score']:.4f}")
            found.append(before)
        return found + self._ensembles(found)

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
        clean = _predicted(model, data, x)
        probs = {"clean": _mixture(*clean)}
        for kind in STRENGTHS:
            for severity in SEVERITIES:
                worse = _predicted(model, data, corrupted(x, kind, severity))
                probs[f"{kind}-{severity}"] = _mixture(*worse)
        for source in self.ood:
            others = foreign.read(source, (x.shape[1], x.shape[2]))
            probs[f"ood-{_stem(source)}"] = _mixture(*_predicted(model, data, others))
        _write(self.folder / "evaluation" / f"{name}.npz", y, probs)
        sample = data.like(x[:50], y[:50]).inputs().to(self.device)
        found = {"name": name, "members": 1, "run": record["run"], **scores_of(y, probs)}
        if len(clean[1]) > 1:
            first = model.support()[0]
            work = flops_by_depth(model, sample)
            found["exits"] = early_exits(y, *clean, first, work)
            found["alone"] = _each_depth(y, *clean, first, work)
        return records.plain(found)

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


def running_mixtures(by_depth: Floats, q: Floats) -> Floats:
    """Σ_{k≤ℓ} q(k) p_k / Σ_{k≤ℓ} q(k) for each ℓ, `(depth, rows, class)`: what is known by then.

    Args:
        by_depth: p_ℓ, `(depth, rows, class)`.
        q: q(ℓ), `(depth,)`.
    """
    total = np.cumsum(q[:, None, None] * by_depth, 0)
    mass = np.cumsum(q)[:, None, None]
    # Depths before any mass know as much as they say themselves.
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), by_depth)


def early_exits(
    labels: NDArray[Any],
    by_depth: Floats,
    q: Floats,
    first: int,
    work: Sequence[float],
    thresholds: Iterable[float] = THRESHOLDS,
) -> list[dict[str, float]]:
    """What comes of it if each row stops at the first depth whose running mixture is sure.

    Args:
        labels: `(rows,)`.
        by_depth: p_ℓ, `(depth, rows, class)`.
        q: q(ℓ), `(depth,)`.
        first: the depth that comes first.
        work: FLOPs of an image up to each depth, `(depth,)`.
        thresholds: how sure, as the probability of the likeliest class.

    Returns:
        For each threshold accuracy, log score, and mean number of layers and FLOPs.
    """
    running = running_mixtures(by_depth, q)
    sure = running.max(2)
    found = []
    for threshold in thresholds:
        enough = sure >= threshold
        enough[-1] = True  # there is nothing further to wait for
        stop = enough.argmax(0)
        chosen = running[stop, np.arange(len(labels))]
        found.append(
            {
                "threshold": float(threshold),
                "accuracy": metrics.accuracy(labels, chosen),
                "log_score": metrics.log_score(labels, chosen),
                "layers": float(stop.mean() + first),
                "flops": float(np.asarray(work)[stop].mean()),
            }
        )
    return found


def _each_depth(
    labels: NDArray[Any], by_depth: Floats, q: Floats, first: int, work: Sequence[float]
) -> list[dict[str, float]]:
    """The same if all rows stop at one depth."""
    running = running_mixtures(by_depth, q)
    return [
        {
            "layers": float(first + place),
            "flops": float(work[place]),
            "accuracy": metrics.accuracy(labels, mixed),
        }
        for place, mixed in enumerate(running)
    ]


def _predicted(model: UDN, data: ImageData, x: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """p_ℓ of each image, `(depth, rows, class)`, and q(ℓ)."""
    found = []
    autocast = model.anchor.is_cuda
    for start in range(0, len(x), _ROWS):
        piece = x[start : start + _ROWS]
        inputs = data.like(piece, np.zeros(len(piece), np.int64)).inputs().to(model.anchor.device)
        with torch.autocast(model.anchor.device.type, torch.bfloat16, enabled=autocast):
            prediction = predict(model, inputs)
        assert isinstance(prediction, ClassPrediction)
        found.append(prediction.log_probs_by_depth.double().exp().cpu().numpy())
    q = model.depth_log_probs().detach().double().exp().cpu().numpy()
    return np.concatenate(found, 1), q / q.sum()


def _mixture(by_depth: Floats, q: Floats) -> Floats:
    mixed: Floats = np.tensordot(q, by_depth, 1)
    return mixed


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
