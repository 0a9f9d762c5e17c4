"""The modules born so far, and all their outputs in one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from unbounded.layers import fused
from unbounded.layers.convolutional import PooledLayer, PooledLinear, pooled
from unbounded.layers.dense import DenseLayer

Run = Callable[[Tensor], Any]


class LayerError(ValueError, RuntimeError):
    """A layer or head could not take what it was given; says at which depth and which shapes."""


class Active(NamedTuple):
    """What a pass over the depths `first` … `last` touches, gathered once per change of depth."""

    hidden: list[nn.Module]  # f_1 … f_last
    runs: list[Run]  # how to call each of them: as it is, compiled, recomputing
    heads: list[nn.Module]  # o_first … o_last; a single one if shared
    stackable: bool  # the heads are plain linear maps of one shape
    fusable: bool  # ... and the layers are plain dense ReLU layers: see layers.fused
    pools: bool  # heads are linear maps of a mean over the image
    hidden_parameters: list[Tensor]
    head_parameters: list[Tensor]
    row_list: list[int]  # which module each parameter belongs to: the layers, then the heads
    rows: Tensor  # the same as a tensor, (len(hidden_parameters) + len(head_parameters),)

    def takes(self, x: Tensor) -> bool:
        """Whether `layers.fused` can run this input; if not, the modules tell what is wrong."""
        if not self.fusable or x.dim() != 2:
            return False
        weight = self.hidden_parameters[0]
        return (
            x.shape[1] == weight.shape[1]
            and x.dtype == weight.dtype
            and not torch.is_autocast_enabled(x.device.type)
        )


class Network(nn.Module):
    """f_1, f_2, … and o_1, o_2, … as far as they are born, keyed by their depth.

    Holds modules and runs them; `unbounded.growth` alone adds and removes them.
    """

    def __init__(self, shares_head: bool = False):
        super().__init__()
        self.shares_head = shares_head
        self._compiles = self._recomputes = False
        self._compiled: dict[tuple[int, bool], Run] = {}
        self.hidden = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        self._active: dict[tuple[int, int], Active] = {}

    @property
    def num_layers(self) -> int:
        """How many hidden layers are born."""
        return len(self.hidden)

    def forward(self, x: Tensor, last: int, first: int = 1) -> Tensor:
        """Ω_ℓ(x) for ℓ = first … last, each layer run once: `(depth, batch, *event)`."""
        active = self.active(last, first)
        if active.pools:
            return self._pooled_heads(self._features(x, active, first), active, first)
        if active.takes(x):
            hidden, heads = active.hidden_parameters, active.head_parameters
            if not torch.is_grad_enabled():
                return fused.forward(x, hidden, heads, first)[0]
            return fused.dense_outputs(x, hidden, heads, first)
        states = self._states(x, active)[first - 1 :]
        if active.stackable and all(s.dim() == 2 and s.shape == states[0].shape for s in states):
            return self._stacked_heads(states, active, first)
        return self._looped_heads(states, active, first)

    def states(self, x: Tensor, last: int) -> list[Tensor]:
        """h_1 … h_last."""
        return self._states(x, self.active(last, last))

    def active(self, last: int, first: int = 1) -> Active:
        """The modules and parameters of a pass; remembered until the network changes."""
        key = (last, first)
        if key not in self._active:
            if last > self.num_layers:
                raise LookupError(f"depth {last} was asked for, {self.num_layers} layers are born")
            self._active.clear()  # one depth at a time: λ moves slowly
            self._active[key] = self._gather(last, first)
        return self._active[key]

    def forget(self) -> None:
        """Drop what `active` remembers; called by whoever adds or removes modules."""
        self._active.clear()
        alive = {id(layer) for layer in self.hidden.values()}
        self._compiled = {key: run for key, run in self._compiled.items() if key[0] in alive}

    def configure(self, *, compiles: bool | None = None, recomputes: bool | None = None) -> None:
        """Choose how layers are run while training; the results are the same to rounding.

        Args:
            compiles: by `torch.compile`, layer by layer: layers of one shape share their code,
                so a network that grows compiles a few times and not at every birth.
            recomputes: keep only h_1 … h_m between the passes and compute what is inside the
                layers again when gradients are due. Batch statistics are counted once. Such layers
                are not compiled.
        """
        self._compiles = self._compiles if compiles is None else compiles
        self._recomputes = self._recomputes if recomputes is None else recomputes
        self.forget()

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        self.forget()  # .to(), .cuda(), .double() may replace parameters
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_active": {}, "_compiled": {}}

    def _states(self, x: Tensor, active: Active) -> list[Tensor]:
        states: list[Tensor] = []
        hidden = x
        try:
            for layer, run in zip(active.hidden, active.runs, strict=True):
                # Only training is worth compiling and recomputing for.
                hidden = run(hidden) if self.training and not active.pools else layer(hidden)
                states.append(hidden)
        except (RuntimeError, ValueError, IndexError) as error:
            raise _layer_error("layer", len(states) + 1, hidden, error, x) from error
        return states

    def _features(self, x: Tensor, active: Active, first: int) -> list[Tensor]:
        """The means over the image of h_first … h_last; no state is kept longer than needed."""
        features: list[Tensor] = []
        hidden, depth = x, 0
        try:
            for layer, run in zip(active.hidden, active.runs, strict=True):
                depth += 1
                if self.training and depth >= first:
                    hidden, mean = run(hidden)
                    features.append(mean)
                elif self.training:
                    hidden = run(hidden)
                else:
                    hidden = layer(hidden)
                    if depth >= first:
                        features.append(pooled(hidden))
        except (RuntimeError, ValueError, IndexError) as error:
            raise _layer_error("layer", depth, hidden, error, x) from error
        return features

    def _pooled_heads(self, features: list[Tensor], active: Active, first: int) -> Tensor:
        """Linear heads of one shape as one batched product, a product for each stage."""
        outputs: list[Tensor] = []
        start = 0
        # The heads' share of the work is small: in full precision whatever the layers run in.
        with torch.autocast(features[0].device.type, enabled=False):
            while start < len(features):
                width, stop = features[start].shape[1], start + 1
                while stop < len(features) and features[stop].shape[1] == width:
                    stop += 1
                weights = torch.stack(active.head_parameters[2 * start : 2 * stop : 2])
                biases = torch.stack(active.head_parameters[2 * start + 1 : 2 * stop : 2])
                if weights.shape[2] != width:
                    raise LayerError(
                        f"head {first + start} takes {weights.shape[2]} features, "
                        f"layer {first + start} gives {width} channels"
                    )
                stacked = torch.stack(features[start:stop]).to(weights.dtype)
                outputs.append(torch.baddbmm(biases.unsqueeze(1), stacked, weights.transpose(1, 2)))
                start = stop
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _stacked_heads(self, states: Sequence[Tensor], active: Active, first: int) -> Tensor:
        """All linear heads as one batched product."""
        stacked = torch.stack(list(states)) if len(states) > 1 else states[0].unsqueeze(0)
        if self.shares_head or len(active.heads) == 1:
            head = active.heads[0]
            try:
                shared: Tensor = head(stacked)
            except (RuntimeError, ValueError) as error:
                raise _layer_error("head", first, states[0], error, states[0]) from error
            return shared
        weights = torch.stack(active.head_parameters[0::2])  # (depth, out, width)
        biases = torch.stack(active.head_parameters[1::2])  # (depth, out)
        if weights.shape[2] != stacked.shape[2]:
            raise LayerError(
                f"head {first} takes {weights.shape[2]} features, "
                f"layer {first} gives {tuple(states[0].shape)}"
            )
        by_class = torch.baddbmm(biases.unsqueeze(2), weights, stacked.transpose(1, 2))
        return by_class.transpose(1, 2)  # why this layout: see layers.fused

    def _looped_heads(self, states: Sequence[Tensor], active: Active, first: int) -> Tensor:
        heads = active.heads * len(states) if self.shares_head else active.heads
        outputs: list[Tensor] = []
        try:
            for head, state in zip(heads, states, strict=True):
                outputs.append(head(state))
        except (RuntimeError, ValueError, IndexError) as error:
            depth = first + len(outputs)
            raise _layer_error("head", depth, states[len(outputs)], error, states[0]) from error
        for offset, output in enumerate(outputs):
            if output.shape != outputs[0].shape:
                raise LayerError(
                    f"head {first + offset} gives {tuple(output.shape)}, "
                    f"head {first} gives {tuple(outputs[0].shape)}: all depths must agree"
                )
        return torch.stack(outputs)

    def _gather(self, last: int, first: int) -> Active:
        hidden = [self.hidden[str(depth)] for depth in range(1, last + 1)]
        depths = [1] if self.shares_head else range(first, last + 1)
        heads = [self.heads[str(depth)] for depth in depths]
        modules = [*hidden, *heads]
        pairs = [
            (p, row) for row, m in enumerate(modules) for p in m.parameters() if p.requires_grad
        ]
        row_list = [row for _, row in pairs]
        device = pairs[0][0].device if pairs else None
        # Outside of inference mode: what is first gathered while predicting serves training too.
        with torch.inference_mode(False):
            rows = torch.tensor(row_list, dtype=torch.long, device=device)
        pools = not self.shares_head and _pools(hidden, heads)
        return Active(
            hidden,
            [self._run_of(layer, pools and at >= first) for at, layer in enumerate(hidden, 1)],
            heads,
            _stackable(heads),
            not self.shares_head and _fusable(hidden, heads),
            pools,
            [p for p, row in pairs if row < last],
            [p for p, row in pairs if row >= last],
            row_list,
            rows,
        )

    def _run_of(self, layer: nn.Module, pools: bool) -> Run:
        """How to call a layer: compiled and recomputing as `configure` says."""
        run: Run = layer.with_pooled if pools else layer  # type: ignore[assignment]
        if self._recomputes:
            return _recomputing(layer, run)
        if self._compiles:
            key = (id(layer), pools)
            if key not in self._compiled:
                self._compiled[key] = torch.compile(run, dynamic=False)
            run = self._compiled[key]
        return run


def _recomputing(layer: nn.Module, run: Run) -> Run:
    """`run` with its insides computed again in the backward pass, batch statistics counted once."""
    norms = [module for module in layer.modules() if isinstance(module, _BatchNorm)]

    @contextmanager
    def uncounted() -> Iterator[None]:
        # The same operations on the same tensors, so not without running statistics: with
        # a momentum that leaves them as they are.
        before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, (momentum, count) in zip(norms, before, strict=True):
                norm.momentum, norm.num_batches_tracked = momentum, count

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), uncounted()

    def recomputing(hidden: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return run(hidden)
        return checkpoint(run, hidden, use_reentrant=False, context_fn=contexts)

    return recomputing


def _pools(hidden: Sequence[nn.Module], heads: Sequence[nn.Module]) -> bool:
    """Whether every layer knows its mean over the image and every head is a linear map of it."""
    return all(isinstance(layer, PooledLayer) for layer in hidden) and all(
        type(head) is PooledLinear and _is_bare(head) for head in heads
    )


def _fusable(hidden: Sequence[nn.Module], heads: Sequence[nn.Module]) -> bool:
    """Whether `layers.fused` computes the same as these modules called one by one."""
    width = hidden[0].out_features if isinstance(hidden[0], DenseLayer) else -1
    return (
        _stackable(heads)
        and all(
            type(layer) is DenseLayer
            and layer.activation is torch.relu
            and layer.out_features == width
            and (index == 0 or layer.in_features == width)
            and _is_bare(layer)
            for index, layer in enumerate(hidden)
        )
        and isinstance(heads[0], nn.Linear)
        and heads[0].in_features == width
    )


def _is_bare(layer: nn.Linear) -> bool:
    """Whether nothing is hooked onto a linear map and all of it is trained."""
    return (
        layer.bias is not None
        and layer.weight.requires_grad
        and layer.bias.requires_grad
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not layer._backward_hooks
        and not layer._backward_pre_hooks
    )


def _stackable(heads: Sequence[nn.Module]) -> bool:
    """Whether the heads are plain linear maps of one shape, with nothing hooked onto them."""

    def plain(head: nn.Module) -> bool:
        return type(head) is nn.Linear and _is_bare(head)

    first = heads[0]
    return all(plain(head) for head in heads) and all(
        isinstance(first, nn.Linear)
        and isinstance(head, nn.Linear)
        and head.weight.shape == first.weight.shape
        for head in heads
    )


def _layer_error(what: str, depth: int, state: Tensor, error: Exception, x: Tensor) -> Exception:
    """The same failure, told by depth and shapes; failures that are not of shapes pass through."""
    if isinstance(error, torch.OutOfMemoryError | LayerError):
        return error
    source = (
        "the input"
        if what == "layer" and depth == 1
        else (f"layer {depth - 1}" if what == "layer" else f"layer {depth}")
    )
    return LayerError(
        f"{what} {depth} could not take what {source} gives, "
        f"shape {tuple(state.shape)} and dtype {state.dtype}: {error}"
    )
