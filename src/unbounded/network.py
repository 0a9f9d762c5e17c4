"""The modules born so far, and all their outputs in one pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from unbounded import trees
from unbounded.layers.base import (
    CountsBatches,
    LayerError,
    Layers,
    Stack,
    is_plain,
    layer_error,
    plainly,
)

if TYPE_CHECKING:
    from unbounded.priors import WeightPrior


class Active(NamedTuple):
    """The trainable parameters of the depths `first` … `last`, each once, and who uses them.

    A use is a pair of a parameter and a module (the layers 1 … last, then the heads). A parameter
    has several uses only where heads share it; a layer that stands at several depths counts at
    the first of them.
    """

    parameters: list[nn.Parameter]  # those of the layers first
    num_hidden: int  # how many of them are the layers'
    num_modules: int  # layers and heads
    of_use: Tensor | None  # which parameter each use is of, (uses,); None: each has one use
    module_of_use: Tensor  # by which module, (uses,)

    def by_module(self, values: Tensor) -> Tensor:
        """Sums over the parameters of each module, `(num_modules,)`, of `(parameters,)`."""
        total = values.new_zeros(self.num_modules)
        uses = values if self.of_use is None else values[self.of_use]
        return total.index_add(0, self.module_of_use, uses)

    def by_parameter(self, values: Tensor) -> Tensor:
        """Sums over the modules that use each parameter, `(parameters,)`, of `(num_modules,)`."""
        uses = values[self.module_of_use]
        if self.of_use is None:
            return uses
        return values.new_zeros(len(self.parameters)).index_add(0, self.of_use, uses)


class Placement:
    """Where the parameters of layers and heads are: whole, in this process.

    `unbounded.parallel.Shards` is another one, which spreads them over processes.
    """

    is_whole: bool = True
    """Whether this process holds all of every parameter."""
    apart: bool = False
    """Whether an optimiser has a group for what is outside of layers and heads."""
    share: float = 1.0
    """How much of each parameter it holds."""
    writes: bool = True
    """Whether this process writes what all of them gather."""

    def place(self, module: nn.Module) -> None:
        """Bring a newborn layer or head to its place, before any optimiser sees it."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a parameter or a tensor like it; all processes ask for it."""
        return tensor

    def kl(self, prior: "WeightPrior", parameters: Sequence[nn.Parameter]) -> Tensor:
        """What each whole parameter costs, `(parameters,)`."""
        return prior.kl(parameters)

    def agreeing(self) -> AbstractContextManager[None]:
        """A block that fails in all processes if it fails in one."""
        return nullcontext()


WHOLE = Placement()
"""The usual one."""


class Network(nn.Module):
    """f_1, f_2, … and o_1, o_2, … as far as they are born, keyed by their depth.

    Holds modules and runs them; `unbounded.growth` alone adds and removes them. Knows no kind of
    layer: the generator is asked at every pass whether it has a faster way to run its own.
    """

    def __init__(self, layers: Layers):
        super().__init__()
        self.layers = layers
        self.compiles = self.recomputes = False
        self.placement = WHOLE
        self.hidden = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        self._compiled: WeakKeyDictionary[nn.Module, dict[str, Callable[..., Any]]]
        self._compiled = WeakKeyDictionary()
        self._known: tuple[Any, Active] | None = None

    @property
    def shares_head(self) -> bool:
        """Whether all depths use one head."""
        return self.layers.shares_head

    @property
    def num_layers(self) -> int:
        """How many hidden layers are born."""
        return len(self.hidden._modules)

    def forward(self, x: trees.Tree, last: int, first: int = 1, in_step: bool = False) -> Tensor:
        """Ω_ℓ(x) for ℓ = first … last, each layer run once: `(depth, batch, *event)`."""
        stack = self.stack(last, first)._replace(in_step=in_step, context=self.layers.context(x))
        outputs = self.layers.run(stack, x) if isinstance(x, Tensor) else None
        return self._one_by_one(stack, x) if outputs is None else outputs

    def states(self, x: trees.Tree, last: int) -> list[Tensor]:
        """h_1 … h_last."""
        return self.stack(last, last)._replace(context=self.layers.context(x)).states(x)

    def stack(self, last: int, first: int = 1) -> Stack:
        """The modules of a pass, as they are now."""
        if last > self.num_layers:
            raise LookupError(f"depth {last} was asked for, {self.num_layers} layers are born")
        hidden, heads = self.hidden._modules, self.heads._modules
        depths = (1,) if self.shares_head else range(first, last + 1)
        return Stack(
            [hidden[str(depth)] for depth in range(1, last + 1)],
            [heads[str(depth)] for depth in depths],
            first,
            self._call if self.training and (self.compiles or self.recomputes) else plainly,
        )

    def active(self, last: int, first: int = 1, *, cumulative_heads: bool = False) -> Active:
        """The parameters of a pass. Gathered anew if any was replaced, frozen or added."""
        stack = self.stack(last, first)
        modules = [parameters_of(module) for module in (*stack.hidden, *stack.heads)]
        # Modules are told apart by their parameters, frozen ones by the sign.
        key = [id(p) if p.requires_grad else -id(p) for module in modules for p in module]
        key += (first, last, cumulative_heads)
        if self._known is None or self._known[0] != key:
            hidden, heads = modules[:last], modules[last:]
            self._known = key, _gather(hidden, heads, first, self.shares_head, cumulative_heads)
        return self._known[1]

    def signature(self, last: int, first: int = 1) -> list[Any]:
        """What a captured pass depends on: which modules, hooked or not, which parameters train."""
        stack = self.stack(last, first)
        modules = [m for top in (*stack.hidden, *stack.heads) for m in top.modules()]
        plain = [id(m) if is_plain(m, type(m)) else -id(m) for m in modules]
        parameters = (p for m in modules for p in m._parameters.values() if p is not None)
        return plain + [id(p) if p.requires_grad else -id(p) for p in parameters]

    def configure(self, *, compiles: bool | None = None, recomputes: bool | None = None) -> None:
        """Choose how layers are run while training; the results are the same to rounding.

        Args:
            compiles: by `torch.compile`, layer by layer: layers of one shape share their code,
                so a network that grows compiles a few times and not at every birth.
            recomputes: keep only h_1 … h_m between the passes and compute what is inside the
                layers again when gradients are due. Batch statistics are counted once. Such layers
                are not compiled.
        """
        self.compiles = self.compiles if compiles is None else compiles
        self.recomputes = self.recomputes if recomputes is None else recomputes

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Depth by depth, layer before head: parameters that are born later come later."""
        memo = set() if memo is None else memo
        for name, module in (("", self), ("hidden", self.hidden), ("heads", self.heads)):
            if module not in memo:
                if remove_duplicate:
                    memo.add(module)
                yield _joined(prefix, name), module
        depths = sorted({*self.hidden._modules, *self.heads._modules}, key=int)
        for depth in depths:
            for role, container in (("hidden", self.hidden), ("heads", self.heads)):
                module = container._modules.get(depth)  # type: ignore[assignment]
                if module is not None:
                    name = _joined(prefix, f"{role}.{depth}")
                    yield from module.named_modules(memo, name, remove_duplicate)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_known": None, "_compiled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_compiled": WeakKeyDictionary()})

    def _call(self, layer: nn.Module, method: str = "__call__") -> Callable[..., Any]:
        """How a layer is called while training: compiled or recomputing."""
        function = layer if method == "__call__" else getattr(layer, method)
        if self.recomputes:
            return _recomputing(layer, function)
        known = self._compiled.setdefault(layer, {})
        if method not in known:
            known[method] = torch.compile(function, dynamic=False)
        return known[method]

    def _one_by_one(self, stack: Stack, x: trees.Tree) -> Tensor:
        states = stack.states(x)[stack.first - 1 :]
        heads = list(stack.heads) * len(states) if self.shares_head else stack.heads
        outputs: list[Tensor] = []
        try:
            for head, state in zip(heads, states, strict=True):
                outputs.append(head(state, *stack.given(head)))
        except (RuntimeError, ValueError, IndexError) as error:
            at = len(outputs)
            raise layer_error("head", stack.first + at, states[at], error) from error
        for offset, output in enumerate(outputs):
            if output.shape != outputs[0].shape:
                raise LayerError(
                    f"head {stack.first + offset} gives {tuple(output.shape)}, "
                    f"head {stack.first} gives {tuple(outputs[0].shape)}: all depths must agree"
                )
        return torch.stack(outputs)


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """As `module.parameters()`, in a fifth of its time: asked for every module at every step."""
    found = [p for p in module._parameters.values() if p is not None]
    for child in module._modules.values():
        if child is not None:
            found += parameters_of(child)
    return found


def _gather(
    hidden: Sequence[Iterable[nn.Parameter]],
    heads: Sequence[Iterable[nn.Parameter]],
    first: int,
    shares_head: bool,
    cumulative_heads: bool,
) -> Active:
    uses: list[tuple[nn.Parameter, int]] = []
    earliest: dict[int, int] = {}  # the first layer that has a parameter
    # A shared head is used at every depth: what a layer has in common with it counts there.
    in_head = {id(p) for p in heads[0]} if shares_head and heads else set()
    for depth, parameters in enumerate(hidden, 1):
        for p in parameters:
            if p.requires_grad and id(p) not in earliest and id(p) not in in_head:
                earliest[id(p)] = depth
                uses.append((p, depth - 1))
    num_hidden = len(uses)
    counted: set[int] = set()
    for offset, parameters in enumerate(heads):
        mine: set[int] = set()
        for p in parameters:
            in_layer = earliest.get(id(p), first + offset + 1) <= first + offset
            if p.requires_grad and not in_layer and id(p) not in mine | counted:
                mine.add(id(p))
                uses.append((p, len(hidden) + offset))
        if cumulative_heads:
            counted |= mine
    distinct = list({id(p): p for p, _ in uses}.values())
    places = {id(p): index for index, p in enumerate(distinct)}
    device = distinct[0].device if distinct else None
    # Outside of inference mode: what is first gathered while predicting serves training too.
    with torch.inference_mode(False):
        of_use = None
        if len(distinct) < len(uses):
            of_use = torch.tensor([places[id(p)] for p, _ in uses], device=device)
        modules = torch.tensor([row for _, row in uses], dtype=torch.long, device=device)
    return Active(distinct, num_hidden, len(hidden) + len(heads), of_use, modules)


class _Again(AbstractContextManager[None]):
    """Blocks in which a layer is computed once more, as it was when this was made.

    There are as many as backward passes. Batch statistics and counts of batches stay as they are.
    """

    def __init__(self, layer: nn.Module):
        self.norms = [module for module in layer.modules() if isinstance(module, _BatchNorm)]
        self.counts = [m.seen for m in layer.modules() if isinstance(m, CountsBatches)]
        self.then = [seen.clone() for seen in self.counts]

    def __enter__(self) -> None:
        self.before = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        self.now = [seen.clone() for seen in self.counts]
        # The same operations on the same tensors, so not without running statistics: with
        # a momentum that leaves them as they are.
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        for seen, then in zip(self.counts, self.then, strict=True):
            seen.copy_(then)

    def __exit__(self, *_: object) -> None:
        for seen, now in zip(self.counts, self.now, strict=True):
            seen.copy_(now)
        for norm, (momentum, count) in zip(self.norms, self.before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def _recomputing(layer: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with its insides computed again in the backward pass."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _Again(layer)

    def recomputing(*given: Any) -> Any:
        if not torch.is_grad_enabled():
            return run(*given)
        return checkpoint(run, *given, use_reentrant=False, context_fn=contexts)

    return recomputing


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
