"""Scores of a model on data, with one host read for all sets."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded import trees
from unbounded.likelihoods import Likelihood
from unbounded.parallel import ALONE, Processes
from unbounded.predictive import evaluating, without_gradients
from unbounded.steps import held_out_rows as over
from unbounded.steps.batches import ArrayBatches, Batch, Batches, LoaderBatches

if TYPE_CHECKING:
    from unbounded.model import UDN

Sets = Mapping[str, Batches]

ERRORS = ("val_error", "val_log_error")
"""Standard errors of the score and of the log score of the set that is kept."""


class SetScores:
    """NAME_SCORE and NAME_log_score for each set: the likelihood's score and the mean log score.

    Rows count as often as their weights say, where a set has weights, and as often as they hold
    observations. Small sets are put together once and scored in one pass. Never creates a layer;
    the model's mode is left as it was.

    Args:
        sets: by name.
        processes: who share the rows; each scores a part of them, and all get the same scores.
    """

    def __init__(self, sets: Sets, processes: Processes = ALONE):
        self.sets, self.processes = dict(sets), processes
        arrays = {name: data for name, data in sets.items() if isinstance(data, ArrayBatches)}
        self.by_depth = torch.zeros(0)
        """log p(y_i; Ω_ℓ(x_i)) of the set that was kept last, `(depth, rows)`."""
        self._joint: Batch | None = None
        self._sizes = {name: data.num_rows for name, data in arrays.items()}
        alike = {(*trees.kind(d.x), d.y.shape[1:], d.y.dtype) for d in arrays.values()}
        few = sum(self._sizes.values()) <= min((d.batch_size for d in arrays.values()), default=0)
        unweighted = all(data.weights is None for data in arrays.values())
        lone = processes.size == 1
        if len(arrays) > 1 and len(alike) == 1 and few and unweighted and lone:
            self._joint = Batch(
                trees.joined([data.x for data in arrays.values()]),
                torch.cat([data.y for data in arrays.values()]),
                None,
            )

    def __call__(
        self, model: "UDN", autocast: torch.dtype | None = None, keep: str | None = None
    ) -> dict[str, float]:
        """The scores of all sets.

        Args:
            model: to be scored.
            autocast: the dtype of the layers.
            keep: the name of a set whose log-likelihoods by depth are kept, in `by_depth`.
        """
        likelihood = model.likelihood
        kept: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        with evaluating(model), without_gradients(model):
            log_q = model.depth_log_probs()
            for sizes, batch, share in self._passes():
                part = _Part(batch, sizes, self.processes, share)
                sizes, (x, y, weights) = part.sizes, part.rows
                if autocast is None:
                    outputs = model(x)
                else:
                    with torch.autocast(y.device.type, autocast):
                        outputs = model(x)
                    outputs = outputs.float()
                if keep in sizes:
                    by_depth = likelihood.log_scores(outputs, y)
                    place = list(sizes).index(keep)
                    kept.append(part.in_place(by_depth.split(list(sizes.values()), 1)[place]))
                rows = torch.stack(row_scores(likelihood, outputs, log_q, y))
                if part.is_empty:
                    weights = torch.zeros_like(rows[0])
                weights = row_weights(likelihood, y, weights)
                counts = list(sizes.values())
                each = [None] * len(counts) if weights is None else weights.split(counts)
                for name, own, mine in zip(sizes, rows.split(counts, 1), each, strict=True):
                    total = over.sums(own, mine)
                    sums[name] = sums[name] + total if name in sums else total
            values = []
            if sums:
                totals = torch.stack([sums[name] for name in self.sets])
                self.processes.sum(totals)
                values = torch.stack(over.mean_and_error(totals), 1).tolist()
            if kept:
                self.by_depth = torch.cat(kept, 1)
                self.processes.sum(self.by_depth)
        result: dict[str, float] = {}
        for name, ((mean, log_mean), errors) in zip(self.sets, values, strict=True):
            if likelihood.score_name != "log_score":
                result[f"{name}_{likelihood.score_name}"] = likelihood.finish_score(mean)
            result[f"{name}_log_score"] = log_mean
            if name == keep:
                result |= dict(zip(ERRORS, finished(likelihood, mean, *errors), strict=True))
        return result

    def _passes(self) -> Iterator[tuple[dict[str, int], Batch, float | None]]:
        """Batches, each with the names and sizes of the sets that it holds one after another.

        And with its share of the rows of all processes, where each has read rows of its own.
        """
        if self._joint is not None:
            yield self._sizes, self._joint, None
        for name, data in self.sets.items():
            if self._joint is None or name not in self._sizes:
                for batch in data:
                    share = data.share if isinstance(data, LoaderBatches) else None
                    yield {name: batch.y.shape[0]}, batch, share


class _Part:
    """The rows of a batch that this process scores; all of them if it is alone."""

    def __init__(
        self, batch: Batch, sizes: dict[str, int], processes: Processes, share: float | None
    ):
        self.rows, self.sizes, self.is_empty = batch, sizes, share == 0
        self._all: int | None = None
        if processes.size > 1 and share is None:
            self._all = batch.y.shape[0]
            self._here, share = processes.own_rows(self._all)
            self.is_empty = share == 0
            x, y, weights = batch
            own = None if weights is None else weights[self._here]
            self.rows = Batch(trees.rows(x, self._here), y[self._here], own)
            self.sizes = dict.fromkeys(sizes, self._here.stop - self._here.start)

    def in_place(self, by_depth: Tensor) -> Tensor:
        """Numbers `(depth, own rows)` among zeros for the rows of others: `(depth, rows)`."""
        if self._all is None:
            return by_depth
        found = by_depth.new_zeros(by_depth.shape[0], self._all, dtype=torch.float64)
        if not self.is_empty:
            found[:, self._here] = by_depth
        return found


def finished(
    likelihood: Likelihood, mean: float, error: float, log_error: float
) -> tuple[float, float]:
    """The errors of the score and of the log score, the first as `finish_score` has it."""
    if likelihood.score_name == "log_score":
        return log_error, log_error
    score, worse = likelihood.finish_score(mean), likelihood.finish_score(mean + error)
    return abs(worse - score), log_error


def row_scores(
    likelihood: Likelihood, outputs: Tensor, log_q: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The score (before `finish_score`) and the log score of each row, `(batch,)` each.

    Where a row holds several observations, means over these.

    Args:
        likelihood: p(y; Ω).
        outputs: Ω_ℓ(x), `(depth, batch, *event)`.
        log_q: log q(ℓ), `(depth,)`.
        y: targets, `(batch, …)`.
    """
    prediction = likelihood.predict(outputs, log_q)
    log_prob = prediction.log_prob(y)
    score = likelihood.score(prediction, y).to(log_prob.dtype)
    return score, per_observation(likelihood, log_prob, y)


def per_observation(likelihood: Likelihood, values: Tensor, y: Tensor) -> Tensor:
    """Sums over the observations of each row, `(…, rows)`, as means over them."""
    held = likelihood.observations(y)
    return values if held is None else values / held.clamp(min=1).to(values.dtype)


def row_weights(likelihood: Likelihood, y: Tensor, weights: Tensor | None) -> Tensor | None:
    """How often each row counts, `(rows,)`, times the observations in it; None: once each."""
    held = likelihood.observations(y)
    if held is None or weights is None:
        return held if weights is None else weights
    return held * weights


def score(model: "UDN", sets: Sets, autocast: torch.dtype | None = None) -> dict[str, float]:
    """The scores of a model on sets, once; see `SetScores`."""
    return SetScores(sets)(model, autocast)
