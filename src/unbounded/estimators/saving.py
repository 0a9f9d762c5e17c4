"""Files of fitted estimators, as methods; `unbounded.estimators.files` has what is in them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator


class Savable:
    """An estimator with `save` and `load`; the subclass knows how to describe its targets."""

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the fitted estimator to one safetensors file: data only, no pickle.

        Args:
            path: the file; replaced if it is there.
            extra: plain data (JSON) of your own to travel in the header.
        """
        from unbounded.estimators import files

        files.save(cast("UDNEstimator", self), path, extra=extra)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Read what `save` wrote.

        Args:
            path: the file.
            options: `device`, and parts of your own (`layers`, `likelihood`, `depth`, …) where the
                model was fitted with ones that a file cannot carry.
        """
        from unbounded.estimators import files

        found = files.load(path, **options)
        if not isinstance(found, cls):
            raise ValueError(f"{path} holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    def _describe_targets(self) -> dict[str, Any]:
        """What `save` must know of the targets, as plain data."""
        raise NotImplementedError

    def _rebuild_targets(self, described: dict[str, Any], where: str) -> None:
        """The inverse of `_describe_targets`, once the models are there; a FileError if it fails.

        Args:
            described: plain data of a file.
            where: what errors call it.
        """
        raise NotImplementedError
