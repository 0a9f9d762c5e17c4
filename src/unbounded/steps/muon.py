"""Muon: momentum whose matrices are made orthogonal before they are taken (Jordan et al., 2024)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Of a polynomial a x + b x³ + c x⁵ that brings singular values in (0, 1] near to 1 in five steps:
# the slope at 0 is large, and around 1 it swings by about a quarter.
_A, _B, _C = 3.4445, -4.7750, 2.0315
ROLES_AS_SGD = ("heads", "likelihood", "depth")
"""Groups of `param_groups` that hold no matrix in the middle of the network."""


class Muon(torch.optim.Optimizer):
    """Orthogonal steps for the matrices of hidden layers, SGD with momentum for all else.

    A convolution's weight is the matrix (outputs, inputs·height·width). Its step is the momentum
    with all singular values brought near to 1, times √max(1, rows/columns), and its decay is apart
    from the gradient. Vectors, heads, the likelihood and λ go as with `torch.optim.SGD`.

    Matrices of one shape take one batched product: few kernels, however many layers there are.

    Args:
        params: as of any optimiser; groups of `param_groups` know what is a head.
        lr: rate of what is no matrix. Schedules move it, and the matrices' rate with it.
        matrix_ratio: rate of the matrices, as a multiple of `lr`.
        momentum: of both.
        nesterov: whether both look ahead.
        weight_decay: of what is no matrix, in its gradient.
        matrix_decay: of the matrices: a step takes `lr · matrix_ratio · matrix_decay` of them away.
        iterations: of the polynomial.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        matrix_ratio: float = 0.2,
        momentum: float = 0.9,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        matrix_decay: float = 0.0,
        iterations: int = 5,
    ):
        for name, value in (("lr", lr), ("matrix_ratio", matrix_ratio), ("momentum", momentum)):
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        defaults = {"lr": lr, "matrix_ratio": matrix_ratio, "momentum": momentum}
        defaults |= {"nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(
            params, {**defaults, "matrix_decay": matrix_decay, "iterations": iterations}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            has_matrices = group.get("role") not in ROLES_AS_SGD
            moved = [p for p in group["params"] if p.grad is not None]
            matrices = [p for p in moved if has_matrices and p.dim() >= 2]
            others = [p for p in moved if not (has_matrices and p.dim() >= 2)]
            if others:
                self._descend(group, others)
            if matrices:
                self._turn(group, matrices)
        return loss

    def _directions(
        self, group: dict[str, Any], parameters: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        """The momentum, as `torch.optim.SGD` has it."""
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffers.append(state["momentum_buffer"])
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, grads)
        if not group["nesterov"]:
            return buffers
        return list(torch._foreach_add(grads, buffers, alpha=group["momentum"]))

    def _descend(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        grads = [p.grad for p in parameters]
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, parameters, alpha=group["weight_decay"]))  # type: ignore[arg-type]
        steps = self._directions(group, parameters, grads)  # type: ignore[arg-type]
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])

    def _turn(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        directions = self._directions(group, parameters, [p.grad for p in parameters])  # type: ignore[misc]
        rate = group["lr"] * group["matrix_ratio"]
        if group["matrix_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["matrix_decay"])
        alike: dict[torch.Size, list[int]] = {}
        for index, parameter in enumerate(parameters):
            alike.setdefault(parameter.shape, []).append(index)
        for shape, places in alike.items():
            stacked = torch.stack([directions[place].reshape(shape[0], -1) for place in places])
            turned = orthogonal(stacked, group["iterations"])
            scale = max(1.0, stacked.shape[1] / stacked.shape[2]) ** 0.5
            for place, step in zip(places, turned.unbind(), strict=True):
                parameters[place].add_(step.view(shape), alpha=-rate * scale)


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """U Vᵀ of each matrix U S Vᵀ, about: `(…, rows, columns)` → the same, singular values near 1.

    By a polynomial of the matrix alone, in half precision on a CUDA device.
    """
    found = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    tall = found.shape[-2] > found.shape[-1]
    if tall:
        found = found.mT
    # All singular values into (0, 1]; a matrix of zeros stays one.
    found = found / (found.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = found @ found.mT
        found = _A * found + (_B * square + _C * square @ square) @ found
    if tall:
        found = found.mT
    return found.to(matrices.dtype)
