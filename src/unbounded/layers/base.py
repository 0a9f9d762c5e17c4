"""The contract of a layer generator, and the one made of a user's own callables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_internals

from unbounded import trees

if TYPE_CHECKING:
    from unbounded.layers.stacks import NetworkStack


class LayerError(ValueError, RuntimeError):
    """A layer or head could not take what it was given; says at which depth and which shapes."""


Caller = Callable[..., Callable[..., Any]]
"""(layer, name of a method) ↦ what to call in its place: as it is, compiled, or recomputing."""


class Stack(NamedTuple):
    """The modules of one pass over the depths `first` … `last`."""

    hidden: Sequence[nn.Module]  # f_1 … f_last
    heads: Sequence[nn.Module]  # o_first … o_last; a single one if shared
    first: int
    call: Caller
    in_step: bool = False  # whether gradients, if any, are those of a training step
    context: Any = None  # what `Layers.context` made of the input

    @property
    def is_differentiated_freely(self) -> bool:
        """Whether someone may differentiate twice, or by `torch.func`: no place for short cuts."""
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        return transformed or (torch.is_grad_enabled() and not self.in_step)

    def given(self, module: nn.Module) -> tuple[Any, ...]:
        """What a layer or head is called with besides its state: the context, if it takes one."""
        return (self.context,) if getattr(module, "takes_context", False) else ()

    def states(self, x: trees.Tree) -> list[Tensor]:
        """h_1 … h_last, each layer called once."""
        states: list[Tensor] = []
        hidden = x
        try:
            for layer in self.hidden:
                hidden = self.call(layer)(hidden, *self.given(layer))
                states.append(hidden)
        except (RuntimeError, ValueError, IndexError) as error:
            raise layer_error("layer", len(states) + 1, hidden, error) from error
        return states


def plainly(layer: nn.Module, method: str = "__call__") -> Callable[..., Any]:
    """A layer as it is: the plainest `Caller`."""
    return layer if method == "__call__" else getattr(layer, method)


def layer_error(what: str, depth: int, state: trees.Tree, error: Exception) -> Exception:
    """The same failure, told by depth and shapes; failures that are not of shapes pass through."""
    if isinstance(error, torch.OutOfMemoryError | LayerError) or of_peers(error):
        return error
    giver = depth - 1 if what == "layer" else depth
    source = f"layer {giver}" if giver else "the input"
    seen = " and ".join(f"shape {tuple(p.shape)} and dtype {p.dtype}" for p in trees.leaves(state))
    return LayerError(f"{what} {depth} could not take what {source} gives, {seen}: {error}")


def of_peers(error: BaseException) -> bool:
    """Whether this was raised by a message to another process, which layers in shards send."""
    if torch.distributed.is_available() and isinstance(error, torch.distributed.DistError):
        return True
    return "gloo/" in str(error) or "NCCL" in str(error)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module is just the `forward` of its class: no hooks, nothing replaced.

    Parametrisations change the class, so they are seen too.
    """
    return (
        type(module) is kind
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and module._compiled_call_impl is None
        and "forward" not in module.__dict__
    )


def all_plain(modules: Sequence[nn.Module], kind: type[nn.Module]) -> bool:
    """Whether `is_plain` holds of all modules, and no hook is there for modules of any kind."""
    return not module_internals._has_any_global_hook() and all(
        is_plain(module, kind) for module in modules
    )


class CountsBatches(nn.Module):
    """A module whose passes in training differ: each goes by how many there were before it.

    Attributes:
        seen: that number, counted by the module. Whoever computes a pass again puts it back first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


class Layers(ABC):
    """The architecture: which hidden layer and which head stand at each depth ℓ = 1, 2, …

    Generators know sizes and nothing of probability. They build on the CPU and draw first weights
    by torch's own functions: whatever these take from torch's default generator comes from one
    that the model's seed and the depth have seeded (see `layers.draws`). The result is moved to
    the model's device, dtype and memory format afterwards.
    """

    shares_head: bool = False
    """Whether all depths use one head, the one that `head(1)` builds."""

    reference: tuple[float, float] = (6.0, 4.0)
    """Place and spread of the depths to look at first: a rule that judges depths by what they can
    do begins there (`HeldOutAscent`). Wide, so that shallow depths learn too."""

    rows_axis: int = 0
    """Which axis of a hidden state goes over the rows of the batch."""

    integer_inputs: bool = False
    """Whether the first layer takes integers (an embedding); else inputs are made floating."""

    has_fixed_steps: bool = True
    """Whether every pass is the same sequence of operations, as CUDA graphs need it. Those of a
    solver that looks at its error are none."""

    @abstractmethod
    def hidden(self, depth: int) -> nn.Module:
        """A new f_ℓ: maps h_{ℓ−1} (the input x for ℓ = 1) to h_ℓ.

        A module with the attribute `takes_context = True` is called with what `context` gives
        besides; heads likewise.
        """

    @abstractmethod
    def head(self, depth: int) -> nn.Module:
        """A new o_ℓ: maps h_ℓ to the parameters of the likelihood."""

    def context(self, x: trees.Tree) -> Any:
        """What modules that take a context get, made once a pass; the input itself by default."""
        return x

    def counts(self, x: trees.Tree) -> Tensor | None:
        """Which places of each row are there, `(batch, time)`; None where all are, or none is."""
        return None

    def join(self, first: nn.Module, head: nn.Module) -> None:  # noqa: B027
        """Let a newborn head share parameters with layer 1; nothing is shared by default."""

    def check_inputs(self, x: trees.Tree) -> None:  # noqa: B027
        """A ValueError if values of the input, rather than its shape, are not for these layers.

        Asked before training and before predictions, since it may read from the device.
        """

    def run(self, stack: Stack, x: Tensor) -> Tensor | None:
        """Ω_ℓ(x) by a faster way than module by module, `(depth, batch, *event)`, or None.

        Asked before every pass: None where a hook, a replaced part or an unusual input would make
        a difference. The network then calls the modules one by one.
        """
        return None

    def stacked(
        self, hidden: Sequence[Sequence[nn.Module]], heads: Sequence[nn.Module]
    ) -> "type[NetworkStack] | None":
        """A class that runs many such networks as one computation, or None for the general way.

        Args:
            hidden: the layers of each network that are born, from the first on; none is hooked,
                but some may be frozen or replaced.
            heads: all heads of all networks.
        """
        return None

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator, as plain data for a file's header."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the layers to unbounded.load yourself"
        )


class CustomLayers(Layers):
    """A generator made of two callables, ℓ ↦ hidden module and ℓ ↦ head.

    Layers of different shapes and types may follow one another as long as each takes what the
    one before gives.

    Example:
        >>> layers = CustomLayers(
        ...     hidden=lambda depth: nn.Linear(2 if depth == 1 else 16, 16),
        ...     head=lambda depth: nn.Linear(16, 3),
        ... )
    """

    def __init__(
        self,
        hidden: Callable[[int], nn.Module],
        head: Callable[[int], nn.Module],
        *,
        shares_head: bool = False,
        integer_inputs: bool = False,
    ):
        self._hidden = hidden
        self._head = head
        self.shares_head = shares_head
        self.integer_inputs = integer_inputs

    def hidden(self, depth: int) -> nn.Module:
        """What the first callable makes of ℓ."""
        return self._hidden(depth)

    def head(self, depth: int) -> nn.Module:
        """What the second callable makes of ℓ."""
        return self._head(depth)
