"""A model of a table: an estimator with the encoding of its columns, in one file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbounded.files import Contents, FileError, read, rebuilding
from unbounded.schema import anything, record
from unbounded.tables.effects import about_columns
from unbounded.tables.encoding import Encoding, Matrix
from unbounded.tables.findings import findings
from unbounded.tables.info import check_held_out, check_info
from unbounded.tables.predictions import ByDepth
from unbounded.tables.prepare import Examples, PreparedTable, prepare
from unbounded.tables.reading import Table, TableError, pandas
from unbounded.tables.scores import ScoreCollector
from unbounded.tables.target import Target
from unbounded.tables.text import closest, progress_bar, shorten, to_json
from unbounded.tables.training import fit_estimator

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

VERSION = 1
_PREDICTED_ROWS = 1 << 14  # at a time, where all rows are in memory
_SAMPLE_ROWS = 1000  # kept of a table that streams, for the importance of its columns


@dataclass
class TableModel:
    """A network that predicts one column of a table from the others.

    Numbers, categories, yes/no, dates and missing values are understood; the depth is inferred.
    Tables are paths of CSV, TSV or Parquet files, plain or gzipped, pandas or polars frames, or
    what `open` gives. A `TableError` says which column is missing or holds what cannot be read;
    `progress=True` draws a progress bar on standard error.

    Attributes:
        estimator: a fitted `UDNClassifier` or `UDNRegressor`, over encoded rows.
        encoding: how the columns become its input.
        target: the column that it predicts.
        info: plain data about the training: rows, scores, what `fit` saw on held-out rows.

    Example:
        >>> model = TableModel.fit("train.csv", target="price")  # doctest: +SKIP
        >>> model.predict("new.csv")[["mean", "lower", "upper"]]  # doctest: +SKIP
    """

    estimator: "UDNEstimator"
    encoding: Encoding
    target: Target
    info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        table: Any,
        target: str,
        *,
        task: str | None = None,
        drop: Sequence[str] = (),
        category: Sequence[str] = (),
        keep: Sequence[str] = (),
        missing: Sequence[str] = (),
        held_out: float = 0.2,
        max_rows: int | None = None,
        stream: bool | None = None,
        seed: int = 0,
        device: str = "auto",
        references: bool = True,
        delimiter: str | None = None,
        encoding: str | None = None,
        progress: bool = False,
        **estimator_options: Any,
    ) -> "TableModel":
        """Learn to predict one column of a table from the others.

        Ctrl-C ends training early and keeps the best epoch.

        Args:
            table: a path or a frame.
            target: the column to predict.
            task: "classification" or "regression"; by default `RULE` decides.
            drop: columns to leave out.
            category: columns to take as categories, also if they hold numbers.
            keep: columns to use also if they look like identifiers or free text.
            missing: texts that stand for a missing value, besides empty fields, NA, NaN, null, …
            held_out: share of the rows to score on and never learn from; 0 learns from all.
            max_rows: use at most this many rows, drawn at random.
            stream: learn from rows on disk rather than in memory; by default where the table has
                more than 100 million cells (docs/scaling.md).
            seed: of the split, the weights and the shuffling.
            device: "cpu", "cuda" or "auto", the GPU if there is one.
            references: also score a linear model and gradient boosting on the held-out rows.
            delimiter: between the fields of a text file; told from the header by default.
            encoding: of a text file; UTF-8 by default.
            estimator_options: other arguments of `UDNClassifier` or `UDNRegressor`, such as
                `width`, `epochs`, `lr` or `n_members`.

        Raises:
            TableError: if nothing can be learnt from the table.
            ValueError: if an argument is out of its range.
        """
        opened = Table(table, delimiter=delimiter, encoding=encoding, missing=missing)
        columns: dict[str, Any] = {"drop": drop, "category": category, "keep": keep}
        rows: dict[str, Any] = {"held_out": held_out, "max_rows": max_rows, "stream": stream}
        common: dict[str, Any] = {"seed": seed, "progress": progress}
        data = prepare(opened, target, task=task, **columns, **rows, **common)
        model = cls.train(data, device=device, **common, **estimator_options)
        model.score_held_out(data, references=references)
        return model

    @classmethod
    def train(
        cls,
        data: PreparedTable,
        *,
        seed: int = 0,
        progress: bool = False,
        **estimator_options: Any,
    ) -> "TableModel":
        """Train on a table that is prepared already; the middle part of `fit`."""
        options = {
            "standardize": False,  # the encoding does that
            "random_state": seed,
            "verbose": int(bool(progress)),
            **estimator_options,
        }
        rows = {"rows": data.num_train, "held_out_rows": len(data.held_out.y)}
        info = {"table": data.table.name, **rows, "seed": seed, "notes": data.notes}
        return cls(fit_estimator(data, options), data.encoding, data.target, info)

    def score_held_out(
        self, data: PreparedTable, *, references: bool = True, importance: bool = True
    ) -> None:
        """Put the scores on held-out rows into `info`, with what a page shows of them.

        Does nothing if no rows were held out. The references are left out if training was
        interrupted, or if Ctrl-C comes while they are fitted; `importance` says whether to
        shuffle columns for their importance.
        """
        from unbounded.tables.references import compare

        x, y = data.held_out
        if not len(y):
            return
        collector = ScoreCollector(self.target.is_classes)
        for start in range(0, len(y), _PREDICTED_ROWS):
            piece = slice(start, start + _PREDICTED_ROWS)
            collector.add(y[piece], self.by_depth(x[piece]))
        self.info["held_out"] = self._summary(collector)
        if importance:
            self.info["held_out"] |= about_columns(self, x, y)
        if references and self.estimator.stopped_ != "interrupted":
            target = self.target
            with suppress(KeyboardInterrupt):  # the model is whole without them
                kind = target.is_classes, len(target.classes)
                self.info["references"] = compare(
                    data.train, (x, y), *kind, self.info["seed"], collector
                )

    def predict(
        self, table: Any, *, interval: float = 0.9, parts: bool = False, conformal: bool = False
    ) -> Any:
        """Predictions for every row, as a pandas frame in the order of the rows.

        For classes the columns are "prediction" and "p_…", the probability of each class; for a
        number "mean", "sd", "lower" and "upper". A pandas frame's index is kept.

        Args:
            table: with the columns of the training table in any order.
            interval: probability of the interval from "lower" to "upper".
            conformal: take the interval from held-out rows, so that it holds what it says whatever
                the model is worth (`UDNRegressor.predict_interval`).
            parts: also give how much of the uncertainty is noise and how much is disagreement
                between depths.
        """
        pd = pandas()
        pieces = self.predict_chunks(table, interval=interval, parts=parts, conformal=conformal)
        frame = pd.concat([pd.DataFrame(columns) for _, columns in pieces], ignore_index=True)
        return frame.set_index(table.index) if isinstance(table, pd.DataFrame) else frame

    def predict_chunks(
        self,
        table: Any,
        *,
        interval: float = 0.9,
        parts: bool = False,
        conformal: bool = False,
        keep: Sequence[str] = (),
        progress: bool = False,
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """(rows, columns of predictions) chunk by chunk, in bounded memory; see `predict`.

        Columns of the table that `keep` names stand before the predictions: Arrow arrays of
        what the table holds, unread.
        """
        if not 0 < interval < 1:
            raise ValueError(f"interval must be between 0 and 1, got {interval}")
        factor = self._factor(interval) if conformal else None
        table, empty = self.open(table), True
        table.check_names(keep, "--keep: ")
        self.encoding.check_names(table, self.target.name)
        with progress_bar(progress, "predicting", table.num_rows) as count:
            for (start, frame), kept in table.chunks_with(keep, progress=count):
                if not len(frame):
                    continue
                x = self.encoding.transform_frame(frame, start)
                columns = self.by_depth(x).columns(self.target.classes, interval, parts, factor)
                for name in kept.keys() & columns.keys():
                    raise TableError(f"--keep {name}: the predictions have a column of this name")
                yield frame, kept | columns
                empty = False
        if empty:
            raise TableError(f"{table.label} has a header and no rows")

    def _factor(self, interval: float) -> float:
        """How many standard deviations a conformal interval goes to each side."""
        if self.target.is_classes:
            raise TableError("conformal intervals are for numbers, this model predicts classes")
        try:
            return float(self.estimator.interval_factor(interval)[0])
        except ValueError as error:
            # Whoever fits a table has no say in how many rows choose the epoch.
            told = str(error).replace("a validation_fraction of 0, ", "")
            said, mark, _ = told.partition(": hold out more rows")
            advice = ": ask for a smaller interval, or fit a table of more rows" if mark else ""
            raise TableError(said + advice) from None

    def evaluate(self, table: Any) -> dict[str, float]:
        """Scores on rows whose target is known.

        For classes "accuracy", "log_score", "brier", "ece", "aurc", "roc_auc", "f1", "precision"
        and "recall", the last four averaged over the classes; for a number "rmse",
        "mae", "r2", "nll", "crps", "coverage_50", "coverage_90" and "coverage_95".
        """
        scores: dict[str, float] = self.summarize(table)["scores"]
        return scores

    def summarize(
        self, table: Any, *, importance: bool = False, progress: bool = False
    ) -> dict[str, Any]:
        """All that a page shows of rows whose target is known, as plain data.

        Args:
            table: with the target.
            importance: also give the importance of the columns, from up to 1,000 of the rows,
                and how predictions go with those that matter most.
        """
        table, target = self.open(table), self.target
        if target.name not in table.names:
            hint = closest(target.name, table.names)
            raise TableError(f"{table.label} has no column {target.name!r}, the target: {hint}")
        collector = ScoreCollector(target.is_classes)
        without = 0
        sample, keys = [], []
        random = np.random.default_rng(0)
        for start, frame, x in self.chunks(table, "scoring", progress):
            y = target.read(frame[target.name], start)
            known = ~np.isnan(y)
            without += int((~known).sum())
            x, y = x[known], y[known]
            if len(y):
                collector.add(y, self.by_depth(x))
            # The rows with the smallest random keys so far: an even sample of a stream.
            key = random.random(len(y))
            chosen = np.argsort(key)[:_SAMPLE_ROWS]
            sample.append(Examples(x[chosen], y[chosen]))
            keys.append(key[chosen])
        if collector.rows == 0:
            raise TableError(f"{table.label} has no rows with a target {target.name!r}")
        found = {**self._summary(collector), "rows_without_target": without}
        if importance:
            rows = np.argsort(np.concatenate(keys), kind="stable")[:_SAMPLE_ROWS]
            x, y = (np.concatenate(part)[rows] for part in zip(*sample, strict=True))
            found |= about_columns(self, x, y)
        return found

    def report(
        self, path: str | Path, table: Any = None, *, progress: bool = False
    ) -> dict[str, Any]:
        """Write one self-contained HTML page about the model; returns the data that it shows.

        Args:
            path: of the page; replaced if it is there.
            table: rows to score on, with the target. Without it the page shows what `fit` saw
                on the rows that it held out.
        """
        from unbounded.report.page import check_target, write
        from unbounded.tables.pages import model_page

        path = check_target(path)
        if table is None:
            write(path, model_page(self))
            return dict(self.info.get("held_out", {}))
        table = self.open(table)
        found = self.summarize(table, importance=True, progress=progress)
        write(path, model_page(self, found, table.name))
        return found

    def describe(self) -> dict[str, Any]:
        """What the model predicts from what, its depth, its training and scores: plain data."""
        estimator, held_out = self.estimator, self.info.get("held_out", {})
        histories = (estimator.history_, estimator.refit_history_)
        return {
            "task": self.target.task,
            "target": self.target.name,
            "classes": self.target.classes or None,
            "rows": {
                "train": self.info.get("rows", 0),
                "held_out": self.info.get("held_out_rows", 0),
            },
            "columns": self.encoding.listing(),
            "depth": {
                "probs": estimator.depth_probs_,
                "mean": estimator.depth_mean_,
                "max": estimator.max_depth_,
            },
            "training": {
                "epochs": estimator.n_iter_,
                "best_epoch": estimator.best_epoch_,
                "stopped": estimator.stopped_,
                "refitted": estimator.refit_history_ is not None,
                "networks": len(estimator.members_),
                # Of both trainings, where it was done twice; of several networks, of the first.
                "seconds": sum(float(rows[-1]["seconds"]) for rows in histories if rows),
            },
            "scores": {"unbounded": held_out["scores"], **self.info.get("references", {})}
            if held_out
            else None,
            "importance": held_out.get("importance"),
            "effects": held_out.get("effects"),
            "findings": findings(self),
        }

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, with all that is not weights as JSON in its header."""
        data = {
            "version": VERSION,
            "encoding": self.encoding.to_dict(),
            "target": self.target.to_dict(),
            "info": to_json(self.info),
        }
        # As it will be read: what could not be read again is told before it is written.
        _check_description(json.loads(json.dumps(data)), "table")
        self.estimator.save(path, extra={"table": data})

    @classmethod
    def load(cls, path: str | Path | Contents, device: str = "auto") -> "TableModel":
        """Read what `save` wrote, or its contents as `unbounded.files.read` gives them.

        Raises:
            FileError: if the file is damaged, of another version, or knows of no table.
        """
        from unbounded.estimators import load

        contents = read(path)
        data = contents.extra.get("table")
        if not isinstance(data, dict):
            raise FileError(
                f"{contents.label} holds a model, but not one that `unbounded fit` made: "
                "it knows of no columns"
            )
        version = data.get("version")
        if type(version) is not int or version != VERSION:
            described = f"{contents.label} describes its table in version {shorten(repr(version))}"
            raise FileError(f"{described}, this program reads version {VERSION}")
        with rebuilding(contents, "has a damaged description of its table"):
            found = _check_description(data, "extra.table")
        estimator = load(contents, device=device)
        with rebuilding(contents, "has a damaged description of its table"):
            model = cls(estimator, found["encoding"], found["target"], found["info"])
            model._check_parts()
        return model

    def _check_parts(self) -> None:
        """A FileError if the table and the estimator of a file are not made for each other."""
        width, estimator, target = len(self.encoding.feature_names), self.estimator, self.target
        if width != estimator.n_features_in_:
            takes = f"its model takes {estimator.n_features_in_}"
            raise FileError(f"its table makes {width} numbers, {takes}")
        if target.is_classes:
            if not np.array_equal(target.labels, getattr(estimator, "classes_", ())):
                raise FileError("its table has other classes than its model")
        elif not getattr(estimator, "_single_target", False):
            raise FileError("its table has one number to predict, its model does not")
        held_out = self.info.get("held_out")
        if held_out is not None:
            check_held_out(held_out, target)

    def open(self, table: Any, delimiter: str | None = None, encoding: str | None = None) -> Table:
        """The table at a path or in a frame; what meant "missing" in training means it here.

        A `Table` is given back as it is; its class tells of the other arguments.
        """
        if isinstance(table, Table):
            return table
        missing = self.encoding.missing
        return Table(table, delimiter=delimiter, encoding=encoding, missing=missing)

    def by_depth(self, x: NDArray[Any]) -> ByDepth:
        """What every depth predicts for encoded rows `(rows, features)`."""
        estimator: Any = self.estimator
        probs = estimator.depth_probs_[estimator.depths_ - 1]
        if self.target.is_classes:
            return ByDepth(probs, estimator.predict_by_depth(x), None)
        (means, scales), mixture = estimator._both(x)
        whole = mixture if len(mixture[0]) > len(probs) else None
        return ByDepth(probs, means, scales, estimator.levels_[0], whole)

    def chunks(
        self, table: Table, what: str = "reading", progress: bool = False
    ) -> Iterator[tuple[int, Any, Matrix]]:
        """(first row, frame, encoded rows) of a table, chunk by chunk."""
        self.encoding.check_names(table, self.target.name)
        with progress_bar(progress, what, table.num_rows) as count:
            for start, frame in table.chunks(progress=count):
                if len(frame):
                    yield start, frame, self.encoding.transform_frame(frame, start)

    def _summary(self, collector: ScoreCollector) -> dict[str, Any]:
        return {
            "task": self.target.task,
            "depths": self.estimator.depths_.tolist(),
            **collector.summary(),
        }


def _check_description(data: Any, where: str) -> dict[str, Any]:
    """What a file says of its table; a FileError that names the field if it cannot be read."""
    fields = {"encoding": Encoding.from_dict, "target": Target.from_dict, "info": check_info}
    found: dict[str, Any] = record({"version": anything, **fields})(data, where)
    return found
