"""What a population is asked for, checked before any work is done."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from unbounded.engine.blocks import Shape

if TYPE_CHECKING:
    from unbounded.model import UDN


def check_models(models: Sequence["UDN"]) -> None:
    """A ValueError unless the models are of one architecture."""
    if not models:
        raise ValueError("a population needs at least one model")
    first = models[0]
    if len({id(model) for model in models}) < len(models):
        raise ValueError("a model is in the population twice: each member needs its own")
    for index, model in enumerate(models):
        for what, one, other in (
            ("layers", _description(model.layers), _description(first.layers)),
            ("likelihood", _description(model.likelihood), _description(first.likelihood)),
            ("dtype", model.anchor.dtype, first.anchor.dtype),
            ("cumulative_heads", model.cumulative_heads, first.cumulative_heads),
        ):
            if one != other:
                raise ValueError(
                    f"a population has one architecture: member {index} has {what} {one}, "
                    f"member 0 has {other}"
                )


def check_options(
    select: str, patience: int | None, clip: float | None, average: float | None, validation: Any
) -> None:
    """A ValueError if an option makes no sense."""
    if select not in ("score", "log_score"):
        raise ValueError(f"select must be 'score' or 'log_score', got {select!r}")
    if patience is not None and patience < 1:
        raise ValueError(f"patience must be at least 1, got {patience}")
    if patience is not None and validation is None:
        raise ValueError("patience needs a validation set")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    if average is not None and not 0 < average < 1:
        raise ValueError(f"average must be strictly between 0 and 1, got {average}")


def _description(part: Any) -> Any:
    """What tells two architectures apart: kind and arguments, as far as they can be known."""
    try:
        return type(part).__name__, sorted(part.config().items(), key=str)
    except NotImplementedError:
        pass
    if isinstance(part, nn.Module):  # a likelihood of the user's own
        plain = {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)}
        return type(part).__name__, sorted(plain.items()), Shape.of(part)
    return type(part).__name__, sorted(vars(part).items(), key=str)  # equal callables and sizes
