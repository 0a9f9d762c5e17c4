"""Batch norm by the rows of all processes, on any device; torch's own `SyncBatchNorm` needs GPUs.

The modules stay what and where they are, with their parameters, statistics and names; only the
class is another one while they train together.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from unbounded.parallel.processes import Processes


def synchronise(network: nn.Module, processes: Processes) -> None:
    """Let every batch norm of a network see the rows of all processes; alone, do nothing."""
    if processes.size == 1:
        return
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, Together):
            kind = type(module)
            module.__class__ = type(f"Together{kind.__name__}", (Together, kind), {})
            module.__dict__["processes"] = processes


def release(network: nn.Module) -> None:
    """The modules as they were found."""
    for module in network.modules():
        if isinstance(module, Together):
            module.__class__ = type(module).__mro__[2]
            del module.__dict__["processes"]


class Together(_BatchNorm):
    """What is put before the class of a batch norm."""

    processes: Processes

    def forward(self, input: Tensor) -> Tensor:
        """As alone, with mean and variance of the rows of all processes."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, var, count = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self.processes
        )
        self._note(mean, var, count)
        result: Tensor = output
        return result

    @torch.no_grad()
    def _note(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """The running statistics, as torch keeps them."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        share = 0.0 if momentum is None else momentum
        unbiased = var * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """(x − mean) / deviation · weight + bias, whose statistics depend on all rows everywhere."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        processes: Processes,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # Rows that stand in for none (a share of 0) are normalised, but do not count.
        here = float(processes.has_rows)
        rows = wide.new_full((1,), here * x.numel() / x.shape[1])
        sums = torch.cat([wide.sum(axes) * here, rows])
        processes.sum(sums)
        count = sums[-1]
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        squares = centred.square().sum(axes) * here
        processes.sum(squares)
        var = squares / count
        rstd = (var + eps).rsqrt()
        normed = centred * rstd.view(shape)
        output = normed if weight is None else normed * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        ctx.save_for_backward(normed, rstd, weight, count)
        ctx.processes, ctx.axes, ctx.shape = processes, axes, shape
        ctx.mark_non_differentiable(mean, var, count)
        return output.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, rstd, weight, count = ctx.saved_tensors
        grad = grads[0].to(normed.dtype)
        own = torch.stack([grad.sum(ctx.axes), (grad * normed).sum(ctx.axes)])
        total = own.clone()  # parameters get the own rows' part: gradients are summed later
        ctx.processes.sum(total)
        of_bias, of_weight = (total / count).view(2, *ctx.shape).unbind()
        factor = rstd if weight is None else rstd * weight
        of_input = (grad - of_bias - normed * of_weight) * factor.view(ctx.shape)
        found = of_input.to(grads[0].dtype)
        return found, own[1] if weight is not None else None, own[0], None, None
