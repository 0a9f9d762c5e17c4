"""Moving averages of a model's parameters, which may grow in number."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import swa_utils

from unbounded import growth
from unbounded.model import UDN
from unbounded.network import parameters_of
from unbounded.parallel.shards import local
from unbounded.predictive import evaluating
from unbounded.steps.step import uncompiled


def short_memory(steps: int, decay: float) -> float:
    """The decay after so many steps: less at first, so that first weights are soon forgotten."""
    return min(decay, (1 + steps) / (10 + steps))


class MovingAverage:
    """A moving average of each parameter, from its first step on.

    Args:
        model: whose parameters they are.
        decay: of a step, after the first few.
    """

    def __init__(self, model: UDN, decay: float):
        self.model, self.decay = model, decay
        self.values: dict[str, Tensor] = {}
        self.steps: dict[str, int] = {}
        self.noticed: tuple[int, int] | None = None  # epoch and layers when it last was looked
        # By their identity, which is theirs as long as they are kept here.
        self._known: dict[int, tuple[str, nn.Parameter]] = {}

    @torch.no_grad()
    def update(self) -> None:
        """After a step: the parameters that it moved."""
        groups: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for identity, parameter in self._present().items():
            name, _ = self._known[identity]
            if parameter.grad is None and not name.startswith("depth."):
                continue
            if name not in self.values:
                raise LookupError(f"{name} was born unnoticed")
            self.steps[name] += 1
            averages, values = groups.setdefault(self.steps[name], ([], []))
            averages.append(self.values[name])
            values.append(parameter.detach())
        for steps, (averages, values) in groups.items():
            if not self.model.network.placement.is_whole:
                averages, values = [local(a) for a in averages], [local(v) for v in values]
            torch._foreach_lerp_(averages, values, 1 - short_memory(steps, self.decay))

    @torch.no_grad()
    def notice(self) -> None:
        """Before a step: parameters that are new begin as they are, those that are gone go."""
        named = {self._known[i][0]: p for i, p in self._present().items()}
        if named.keys() == self.values.keys():
            return
        for name, parameter in named.items():
            if name not in self.values:
                self.values[name], self.steps[name] = parameter.detach().clone(), 0
        for name in self.values.keys() - named.keys():
            del self.values[name], self.steps[name]

    def _present(self) -> dict[int, nn.Parameter]:
        """All parameters by their identity, whose names are in `_known`."""
        # Not `named_parameters`: it takes seven times as long, as long as a small layer.
        present = {id(parameter): parameter for parameter in parameters_of(self.model)}
        if present.keys() != self._known.keys():
            named = self.model.named_parameters()
            self._known = {id(parameter): (name, parameter) for name, parameter in named}
        return present

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The averages in the model's place, in the same memory, for as long as this lasts."""
        self.notice()
        present = self._present()
        values = [local(parameter.detach()) for parameter in present.values()]
        averages = [local(self.values[self._known[identity][0]]) for identity in present]
        kept = [value.clone() for value in values]
        _copy(averages, values)
        try:
            yield
        finally:
            _copy(kept, values)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


@torch.no_grad()
def renew_norms(model: UDN, inputs: Iterable[Tensor], autocast: torch.dtype | None = None) -> None:
    """Means and variances of all batch normalisations, measured anew with the weights as they are.

    What they have noted in training belongs to the weights of its last steps, not to an average.

    Args:
        model: whose normalisations they are; its modes stay.
        inputs: batches of training inputs, `(rows, …)` each, all of the same weight.
        autocast: run the layers in this dtype.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    kept = [(norm.momentum, norm.training) for norm in norms]
    if not norms:
        return
    try:
        with evaluating(model):
            for norm in norms:
                norm.train()
            for number, batch in enumerate(inputs, 1):
                for norm in norms:
                    norm.momentum = 1 / number  # the mean of all batches so far
                with torch.autocast(
                    batch.device.type, autocast or torch.bfloat16, enabled=autocast is not None
                ):
                    model(batch)
    finally:
        for norm, (momentum, training) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm.train(training)


class AveragedModel(swa_utils.AveragedModel):
    """torch's `AveragedModel` for a model that grows: parameters are paired by name.

    Torch pairs them by position and so leaves out layers that are born later. Here the copy grows
    with the model, and a newborn parameter starts from its value at the first update that sees it.
    """

    def update_parameters(self, model: nn.Module) -> None:
        """Average a model's present parameters into the copy."""
        inner = uncompiled(model)
        copied: UDN = self.module  # type: ignore[assignment]
        known = {name for name, _ in copied.named_parameters()}
        if copied.network.num_layers != inner.network.num_layers:
            growth.resize(copied, inner.network.num_layers)
        named = dict(inner.named_parameters())
        with torch.no_grad():
            for name, parameter in copied.named_parameters():
                if name not in known:
                    parameter.copy_(named[name].detach())
        super().update_parameters(inner)
