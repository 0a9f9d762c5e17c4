"""A model that starts from a table: an estimator with the encoding of its columns, in one file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from unbounded.data.tables import Encoding, Table, Target

VERSION = 1
Floats = NDArray[np.float64]


class ByDepth(NamedTuple):
    """What every depth predicts for some rows.

    For classes `values` are probabilities, `(depth, rows, class)`, and `scales` is None; for
    numbers they are means and standard deviations of the noise, both `(depth, rows)`.
    """

    depth_probs: Floats  # (depth,)
    values: Floats
    scales: Floats | None

    @property
    def mixture(self) -> Floats:
        """The mixture's class probabilities, `(rows, class)`, or means, `(rows,)`."""
        return np.tensordot(self.depth_probs, self.values, 1)

    def noise(self) -> Floats:
        """What no depth knows, `(rows,)`: mean entropy in nats, or standard deviation."""
        if self.scales is None:
            return self.depth_probs @ _entropy(self.values)
        return np.sqrt(self.depth_probs @ self.scales**2)

    def disagreement(self) -> Floats:
        """How far the depths disagree, `(rows,)`: mutual information, or standard deviation."""
        if self.scales is None:
            return np.maximum(_entropy(self.mixture) - self.noise(), 0.0)
        return np.sqrt(self.depth_probs @ (self.values - self.mixture) ** 2)

    def total(self) -> Floats:
        """Both together, `(rows,)`: entropy of the mixture, or its standard deviation."""
        if self.scales is None:
            return _entropy(self.mixture)
        return np.hypot(self.noise(), self.disagreement())


@dataclass
class TableModel:
    """A fitted estimator, how a table becomes its input, and what is known of its training.

    Attributes:
        estimator: a `UDNClassifier` or `UDNRegressor`.
        encoding: of the columns.
        target: the column that it predicts.
        info: plain data about the training: rows, scores, what `fit` saw on held-out rows.
    """

    estimator: Any
    encoding: "Encoding"
    target: "Target"
    info: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """One safetensors file, with all that is not weights as JSON in its header."""
        from unbounded.cli.common import plain

        data = {
            "version": VERSION,
            "encoding": self.encoding.to_dict(),
            "target": self.target.to_dict(),
            "info": plain(self.info),
        }
        self.estimator.save(path, extra={"table": data})

    @classmethod
    def load(cls, path: Path, device: str = "auto") -> "TableModel":
        """Read what `save` wrote.

        Raises:
            FileError: if the file is damaged, of another version, or knows of no table.
        """
        from unbounded.data.tables import Encoding, Target
        from unbounded.estimators import load
        from unbounded.files import FileError, read_header

        data = read_header(path).get("extra", {}).get("table")
        if not isinstance(data, dict):
            raise FileError(
                f"{path} holds a model, but not one that `unbounded fit` made: "
                "it knows of no columns"
            )
        if data.get("version") != VERSION:
            raise FileError(
                f"{path} describes its table in version {data.get('version')!r}, "
                f"this program reads version {VERSION}"
            )
        estimator = load(path, device=device)
        try:
            encoding = Encoding.from_dict(data["encoding"])
            target = Target.from_dict(data["target"])
            info = dict(data["info"])
            width = len(encoding.feature_names)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path} has a damaged description of its table: {error}") from None
        if width != estimator.n_features_in_:
            raise FileError(
                f"{path} is damaged: its table makes {width} numbers, its model takes "
                f"{estimator.n_features_in_}"
            )
        return cls(estimator, encoding, target, info)

    def by_depth(self, x: NDArray[Any]) -> ByDepth:
        """What every depth predicts for encoded rows `(rows, features)`."""
        estimator = self.estimator
        probs = estimator.depth_probs_[estimator.depths_ - 1]
        if self.target.is_classes:
            return ByDepth(probs, estimator.predict_by_depth(x), None)
        means, scales = estimator.predict_by_depth(x, return_std=True)
        return ByDepth(probs, means, scales)

    def chunks(self, table: "Table", progress: Any = None) -> Iterator[tuple[int, Any, Any]]:
        """(first row, frame, encoded rows) of a table, chunk by chunk."""
        self.encoding.check_names(table)
        for start, frame in table.chunks(progress=progress):
            if len(frame):
                yield start, frame, self.encoding.transform_frame(frame, start)


def _entropy(probs: Floats) -> Floats:
    """−Σ_c p log p in nats: `(…, class)` → `(…)`."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))
