"""Layers and heads in shards: each process holds a part of every parameter, and of its moments.

Torch's `fully_shard` does the work: a layer's weights are gathered for as long as it runs, and its
gradients are summed over processes into the shards. Every layer is a unit of its own, so that
those which are born later need nothing but the same call. λ and the likelihood's own parameters
are a few numbers: they stay whole, and their gradients are summed as without shards.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unbounded import growth
from unbounded.network import WHOLE, Placement
from unbounded.parallel.processes import Processes

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.priors import WeightPrior

# Torch's modules for this are imported where they are needed: they take a second.


class Shards(Placement):
    """Parameters that are spread over processes, along their first axis.

    Args:
        processes: several.
        device: of the model.
    """

    is_whole = False
    apart = True

    def __init__(self, processes: Processes, device: torch.device):
        self.processes = processes
        from torch.distributed.device_mesh import DeviceMesh

        group = dist.group.WORLD
        assert group is not None
        self.mesh = DeviceMesh.from_group(group, device.type)
        self.share, self.writes = 1 / processes.size, processes.is_first

    def place(self, module: nn.Module) -> None:
        """Keep this process's part of a layer or head; no message is sent."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        named = dict(module.named_parameters())
        if isinstance(module, FSDPModule) or not named:
            return  # a layer that stands at several depths; nothing to spread
        for name, parameter in named.items():
            if parameter.dim() == 0:
                raise ValueError(
                    f"the parameter {name} of {type(module).__name__} is a single number, which "
                    "does not go with shard=True: give it one axis, torch.zeros(1)"
                )
            if is_sharded(parameter):
                raise _shared(name, module)
            if not parameter.is_contiguous():
                parameter.data = parameter.data.contiguous()
        fully_shard(module, mesh=self.mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        # Each process's rows come with their share of the batch: sums, not means.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def whole(self, tensor: Tensor) -> Tensor:
        """Gathered from all processes."""
        return gathered(tensor) if is_sharded(tensor) else tensor

    def kl(self, prior: "WeightPrior", parameters: Sequence[nn.Parameter]) -> Tensor:
        """Sums over the parts where the prior is Gaussian; else of one whole tensor at a time."""
        if not parameters:
            return torch.zeros(0)
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            raise RuntimeError(
                "the model is in shards: take its elbo under torch.no_grad(), and its gradient by "
                "unbounded.step or fit"
            )
        if prior.precision is None:
            return torch.cat([prior.kl([self.whole(p)]) for p in parameters])
        costs = prior.kl([local(p) for p in parameters])
        self.processes.sum(costs)
        return costs

    def prior_gradient(
        self, prior: "WeightPrior", parameter: nn.Parameter, factor: Tensor
    ) -> Tensor:
        """The own part of factor · ∂KL/∂ν, of a prior that has no closed form."""
        whole = self.whole(parameter.detach()).requires_grad_()
        with torch.enable_grad():
            cost = prior.kl([whole]).sum() * factor
        return local(self.split(torch.autograd.grad(cost, whole)[0]))

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The norm of tensors, some of them in shards, over all processes."""
        sharded = [local(t) for t in tensors if is_sharded(t)]
        others = [t for t in tensors if not is_sharded(t)]
        if not tensors:
            return torch.zeros(())
        total = local(tensors[0]).new_zeros(())
        if sharded:
            total += torch.stack(torch._foreach_norm(sharded)).square().sum()
        self.processes.sum(total)
        if others:
            total += torch.stack([t.norm().to(total) for t in others]).square().sum()
        return total.sqrt()

    def split(self, tensor: Tensor) -> Tensor:
        """A tensor that every process has, in shards; no message is sent."""
        from torch.distributed.tensor import Shard, distribute_tensor

        found: Tensor = distribute_tensor(tensor, self.mesh, [Shard(0)], src_data_rank=None)
        return found

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room for a tensor in shards."""
        from torch.distributed.tensor import Shard, empty

        found: Tensor = empty(*shape, dtype=dtype, device_mesh=self.mesh, placements=[Shard(0)])
        return found

    def agreeing(self) -> AbstractContextManager[None]:
        """By asking all of them."""
        return self.processes.agreeing()


class _Alone(Placement):
    """Shards of one process: the same groups of the optimiser, so that another number goes on."""

    apart = True


def shard(model: "UDN", processes: Processes) -> None:
    """Spread the layers and heads of a model, and those that will be born; alone, nothing moves.

    Every process calls this with the same weights. From then on all of them have to run the model
    together, also to predict with it, freeze it or save it.
    """
    network = model.network
    if not network.placement.is_whole:
        return
    if processes.size == 1:
        network.placement = _Alone()
        return
    if network.compiles:
        raise ValueError("compiled layers do not go with shard=True: configure(compiles=False)")
    modules = (*network.hidden.values(), *network.heads.values())
    _check_unshared(modules)
    placement = Shards(processes, model.anchor.device)
    for module in modules:
        placement.place(module)
    network.placement = placement


def _check_unshared(modules: Sequence[nn.Module]) -> None:
    """A ValueError if a parameter is that of two modules: each would keep a part of its own."""
    owners: dict[int, nn.Module] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if owners.setdefault(id(parameter), module) is not module:
                raise _shared(name, module)


def _shared(name: str, module: nn.Module) -> ValueError:
    return ValueError(
        f"the parameter {name} of {type(module).__name__} is another layer's too: "
        "layers that share parameters do not go with shard=True"
    )


def unshard(model: "UDN") -> None:
    """Whole parameters again in every process, gathered layer by layer; all of them call this."""
    network = model.network
    if network.placement.is_whole:
        return
    gathered: dict[int, nn.Module] = {}
    for role, box in (("hidden", network.hidden), ("heads", network.heads)):
        for depth, module in box.items():
            if id(module) not in gathered:
                gathered[id(module)] = growth.whole_copy(model, role, int(depth))
            box[depth] = gathered[id(module)]
    network.placement = WHOLE


def is_sharded(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of a tensor."""
    module = sys.modules.get("torch.distributed.tensor")  # without it there is none
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here, in the same memory: all of it without shards."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor in shards, without a gradient; every process calls this.

    By one message that is waited for. Torch's own `full_tensor` does not wait, and with gloo the
    process ends if the tensor is on a GPU.
    """
    own, size, rows = local(tensor.detach()), dist.get_world_size(), tensor.shape[0]
    each = -(-rows // size)  # as torch.chunk cuts: the last may have fewer, or none
    part = own.new_zeros(each, *own.shape[1:])
    part[: len(own)] = own
    parts = [torch.empty_like(part) for _ in range(size)]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows].clone()


def held_like(tensor: Tensor, like: Tensor, placement: Placement) -> Tensor:
    """A tensor as another one is held: whole, or in shards. All processes have it alike."""
    if is_sharded(tensor) and not is_sharded(like):
        return gathered(tensor)
    if is_sharded(like) and not is_sharded(tensor):
        assert isinstance(placement, Shards)
        return placement.split(tensor.to(like.device))
    return tensor
