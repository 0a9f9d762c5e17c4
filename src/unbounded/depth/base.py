"""The contract of a depth family."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

NO_MASS = -1e30
"""Stands for log 0. Finite, so that 0 · log 0 = 0 in the terms of the ELBO and their gradients."""

Numbers = Mapping[str, Tensor]
"""λ: a family's parameters and buffers by name, each with the same leading axes (or none)."""

# Beyond this many free numbers `reach` does not try all corners of a box around λ.
_FEW_NUMBERS = 4


class DepthFamily(nn.Module, ABC):
    """A family q(ℓ; λ) of distributions over depths, each member with bounded support.

    Definition 1 of the paper asks for three things: every member has bounded support (`end`),
    any depth is the mode of some member (`is_unbounded`), and λ is continuous (it is made of
    parameters that an optimiser moves).

    A family of your own registers its parameters and implements `scores` and `end`. Both work on
    numbers with any leading axes: one member, many members, or candidates for λ. All else follows.
    What q depends on besides is a buffer, or a plain attribute (`settings`): results are kept as
    long as all of these are the same. See examples/own_family.py.
    """

    is_unbounded: ClassVar[bool] = True
    """Whether every depth is the mode of some member, condition (2) of Definition 1."""

    _memo: tuple[tuple[Any, ...], int] | None = None  # what q depends on, and m(q)
    _log_probs: tuple[tuple[Any, ...], Tensor] | None = None  # the same, and log q

    @abstractmethod
    def scores(self, at: Numbers, size: int) -> Tensor:
        """log q(ℓ) up to a constant for ℓ = 1 … size, as if there were no truncation.

        Args:
            at: λ, `(*lead, *shape of the parameter)` each.
            size: how many depths.

        Returns:
            `(*lead, size)`, in double precision, differentiable in λ, by tensor operations alone.
            A depth below the end without mass has `NO_MASS`.
        """

    @abstractmethod
    def end(self, at: Numbers, size: int) -> Tensor:
        """m(q), the largest depth with mass: `(*lead,)`, integers, by tensor operations alone.

        Where it lies beyond `size` any number above `size` will do.
        """

    @property
    def bound(self) -> int | None:
        """The largest depth that any member reaches; None where there is no limit."""
        return None if self.is_unbounded else self.max_depth()

    def numbers(self) -> dict[str, Tensor]:
        """λ as it is now: parameters and buffers by name."""
        if self._modules:
            return dict(self.named_parameters()) | dict(self.named_buffers())
        return {**self._parameters, **self._buffers}  # type: ignore[dict-item]

    def settings(self) -> dict[str, Any]:
        """What tells two families of one class apart besides λ; members of a stack agree on it."""
        plain = (bool, int, float, str, type(None))
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, plain) and not name.startswith("_") and name != "training"
        }

    def max_depth(self) -> int:
        """m(q), the largest depth with mass. A host read of λ."""
        key = self._key()
        if self._memo is None or self._memo[0] != key:
            numbers = {name: tensor.detach() for name, tensor in self.numbers().items()}
            if not all(bool(torch.isfinite(tensor).all()) for tensor in numbers.values()):
                named = {name: tensor.tolist() for name, tensor in numbers.items()}
                raise FloatingPointError(
                    f"the depth family {type(self).__name__} has {named}: training has diverged"
                )
            size = 16 if self._memo is None else 2 * self._memo[1]
            while (depth := int(self.end(numbers, size))) > size:
                size = max(2 * size, depth)
            self._memo = key, depth
        return self._memo[1]

    def _key(self) -> tuple[Any, ...]:
        """All that q depends on, as plain values: λ, its kind and the settings. A host read."""
        tensors = self.numbers().values()
        values = [t.item() if t.dim() == 0 else t.tolist() for t in tensors]
        return values, [(t.dtype, t.device) for t in tensors], self.settings()

    def log_probs(self) -> Tensor:
        """log q(1), …, log q(m): shape `(max_depth,)`, differentiable in λ.

        Without gradients what was found last is given again as long as λ is the same: a rule that
        moves λ between epochs leaves it alone in all of their steps.
        """
        depth = self.max_depth()
        # Who knows its depth without λ need not have λ read.
        knows = type(self).max_depth is not DepthFamily.max_depth
        if knows or torch.is_grad_enabled():
            return self.log_probs_up_to(depth)
        assert self._memo is not None
        key = self._memo[0]
        if self._log_probs is None or self._log_probs[0] is not key:
            self._log_probs = key, self.log_probs_up_to(depth)
        return self._log_probs[1].clone()

    def log_probs_up_to(self, depth: int) -> Tensor:
        """The same with the support held at `depth`, by tensor operations alone: `(depth,)`.

        What a step runs that must not wait for the host to learn λ (a CUDA graph).
        """
        numbers = self.numbers()
        dtype = next((n.dtype for n in numbers.values() if n.is_floating_point()), torch.float32)
        return self.scores(numbers, depth).log_softmax(-1).to(dtype)

    def log_probs_at(self, at: Numbers, size: int) -> Tensor:
        """log q(ℓ) of any members for ℓ = 1 … size, each with a support of its own.

        Args:
            at: λ of each, with leading axes.
            size: how far to look; as far as the supports of all members reach.

        Returns:
            `(*lead, size)`, in double precision; `NO_MASS` outside of the support.
        """
        scores = self.scores(at, size)
        depths = torch.arange(1, size + 1, device=scores.device)
        inside = depths <= self.end(at, size)[..., None]
        return scores.masked_fill(~inside, NO_MASS).log_softmax(-1)

    def reach(self, at: Numbers, movement: Tensor, size: int) -> Tensor:
        """The largest m(q) while no parameter moves by more than `movement`, `(*lead,)`.

        Exact where m(q) rises or falls with each parameter by itself: the corners are looked at.
        """
        names = [name for name, _ in self.named_parameters()]
        ends = [self.end(at, size)]
        if not self._moves_by_corners:
            return ends[0] if self.bound is None else torch.full_like(ends[0], self.bound)
        for signs in itertools.product((-1, 1), repeat=len(names)):
            moved = {
                name: at[name] + sign * movement.view(*movement.shape, *[1] * (at[name].dim() - 1))
                for name, sign in zip(names, signs, strict=True)
            }
            ends.append(self.end({**at, **moved}, size))
        return torch.stack(ends).amax(0)

    @property
    def looks_ahead(self) -> bool:
        """Whether `reach` can tell where m(q) will be; else it must be asked before every step."""
        return self.bound is not None or self._moves_by_corners

    @property
    def _moves_by_corners(self) -> bool:
        free = list(self.parameters())
        return len(free) <= _FEW_NUMBERS and all(parameter.dim() == 0 for parameter in free)

    def withdraw(self, depth: int) -> None:
        """Move λ so that the support ends at `depth` at most, if it ends beyond it."""

    def first_depth(self) -> int:
        """The smallest depth with mass. Heads below it are never created."""
        return 1

    @torch.no_grad()
    def mean(self) -> float:
        """E[ℓ]. For a gradient in λ, take it of `log_probs`."""
        log_probs = self.log_probs().double()
        depths = torch.arange(1, log_probs.numel() + 1, device=log_probs.device)
        return float(log_probs.exp() @ depths.double())

    def mode(self) -> int:
        """The most probable depth (the smallest one where several tie)."""
        return int(self.log_probs().detach().argmax()) + 1

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this family; λ itself travels as a parameter."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the family to unbounded.load yourself"
        )

    def extra_repr(self) -> str:
        """What `print(model)` says of the current member."""
        return f"E[depth]={self.mean():.3g}, max_depth={self.max_depth()}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DepthFamily":
        """λ stays in single precision at least: in half precision a step would round to nothing."""

        def kept(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if result.is_floating_point() and result.element_size() < 4:
                return tensor.to(result.device, torch.float32)
            return result

        return super()._apply(kept, recurse)


def check_unbounded(family: DepthFamily, depths: tuple[int, ...] = (2, 3, 6)) -> None:
    """A ValueError if some depth is the mode of no member that an ascent in λ can find.

    Condition (2) of Definition 1, as far as a computer can tell: for some depths ℓ, log q(ℓ) is
    driven up until ℓ is the mode.
    """
    for depth in depths:
        if not any(_becomes_mode(family, depth, ascent) for ascent in (_probability, _lead)):
            raise ValueError(
                f"{type(family).__name__} says that it is unbounded, but depth {depth} is the "
                "mode of no member that could be found: condition (2) of Definition 1. "
                "Set is_unbounded = False, or choose a family whose mode moves"
            )


def _probability(scores: Tensor, depth: int) -> Tensor:
    """log q of a depth."""
    return scores.log_softmax(-1)[depth - 1]


def _lead(scores: Tensor, depth: int) -> Tensor:
    """How far log q of a depth is ahead of all others: what a wide family has to be judged by."""
    return scores[depth - 1] - torch.cat([scores[: depth - 1], scores[depth:]]).max()


def _becomes_mode(
    family: DepthFamily, depth: int, ascent: Callable[[Tensor, int], Tensor], steps: int = 300
) -> bool:
    size = 4 * depth + 16
    at = {name: tensor.detach().clone() for name, tensor in family.numbers().items()}
    free = [at[name].double().requires_grad_() for name, _ in family.named_parameters()]
    at |= {name: t for (name, _), t in zip(family.named_parameters(), free, strict=True)}
    if not free:
        return False
    optimizer = torch.optim.Adam(free, lr=0.2)
    with torch.enable_grad(), torch.inference_mode(False):
        for _ in range(steps):
            scores = family.scores(at, size)
            if int(scores.argmax()) == depth - 1:
                return True
            optimizer.zero_grad()
            (-ascent(scores, depth)).backward()
            optimizer.step()
    return False
