"""Accelerate's `prepare`, `save_state` and `load_state` for a model that grows."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from unbounded import growth
from unbounded.model import UDN, deepest_layer


def prepare(
    accelerator: Any, model: UDN, optimizer: torch.optim.Optimizer, *others: Any
) -> tuple[Any, ...]:
    """`accelerator.prepare` for a UDN: on its device, in no wrapper, with states that fit.

    Several processes need none: `unbounded.step` sums gradients over them, those of layers too that
    are born later. `accelerator.load_state` has the layers born that the state is of, in the model
    and in the optimiser, before it reads it (the extra `unbounded[accelerate]`).

    Args:
        accelerator: an `accelerate.Accelerator`.
        model: the model.
        optimizer: of `unbounded.make_optimizer`.
        others: loaders and schedulers.

    Returns:
        The model, the optimiser and the others, prepared.

    Example:
        >>> model, optimizer, loader = prepare(Accelerator(), model, optimizer, loader)
        >>> for x, y in loader:
        ...     ub.step(model.train(), optimizer, x, y, num_data=1024)
    """
    if accelerator.mixed_precision != "no":
        raise ValueError(
            f"mixed_precision={accelerator.mixed_precision!r} would take the objective along: say "
            "autocast=torch.bfloat16 to unbounded.step instead"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise ValueError(
            "gradient_accumulation_steps would leave out steps of the optimiser: say micro_batches "
            "to unbounded.step instead"
        )
    # In evaluation mode nothing is wrapped; `train()` is the user's to call.
    prepared = accelerator.prepare_model(model, evaluation_mode=True)
    inner, rest = growth.unwrapped(optimizer), accelerator.prepare(optimizer, *others)
    first, *more = rest if others else (rest,)

    def grow(models: list[Any], folder: str) -> None:
        for number, one in enumerate(models):
            if one is prepared:
                growth.resize(model, _saved_layers(Path(folder), number), inner)

    accelerator.register_load_state_pre_hook(grow)
    return (prepared, first, *more)


def _saved_layers(folder: Path, number: int) -> int:
    """How many layers the state of a model has, by the names in its file."""
    suffix = f"_{number}" if number else ""
    path = folder / f"model{suffix}.safetensors"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: save states with accelerator.save_state(folder), as safetensors"
        )
    with safe_open(path, framework="pt") as file:
        return deepest_layer(file.keys())
