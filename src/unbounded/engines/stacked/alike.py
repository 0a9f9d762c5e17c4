"""Whether models are of one architecture, so that they can be stacked."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from unbounded.layers.stacks import Shape
from unbounded.model import UDN


def not_taken(model: UDN) -> str | None:
    """What of a model cannot be stacked, in words; None if all can."""
    if model.likelihood.unit != "rows":
        return f"a likelihood of {model.likelihood.unit}"
    modules = (*model.network.hidden.values(), *model.network.heads.values())
    if any(getattr(module, "takes_context", False) for module in modules):
        return "layers that take a context"
    return None


def check_models(models: Sequence[UDN]) -> None:
    """A ValueError unless the models are of one architecture, and one that can be stacked."""
    first = models[0]
    reason = not_taken(first)
    if reason is not None:
        raise ValueError(f"Stacked does not take {reason}: use Eager()")
    for index, model in enumerate(models):
        for what, one, other in (
            ("layers", _description(model.layers), _description(first.layers)),
            ("likelihood", _description(model.likelihood), _description(first.likelihood)),
            ("dtype", model.anchor.dtype, first.anchor.dtype),
            ("cumulative_heads", model.cumulative_heads, first.cumulative_heads),
        ):
            if one != other:
                raise ValueError(
                    f"Stacked needs models of one architecture: model {index} has {what} {one}, "
                    f"model 0 has {other}; use Eager()"
                )


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
