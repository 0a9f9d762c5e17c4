"""A pass of few rows in NumPy: there torch spends most of its time between operations, not in them.

A module takes part if its class itself has a method `in_numpy`, which gives what `forward` does in
evaluation mode as a function of arrays. A class that is derived from it may do something else, so
it has to say so itself. Parameters are read as they are now, without a copy, in double precision:
who keeps such a function watches the parameters, or keeps a copy that nobody changes
(`unbounded.estimators.prepared`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as module_internals

from unbounded.layers.base import Stack, is_plain
from unbounded.layers.dense_passes import NORM_EPS

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]


class Pass:
    """x ↦ Ω_ℓ(x) of one network: `(batch, …)` → `(depth, batch, *event)`."""

    def __init__(
        self, layers: list[Function], heads: Function, skipped: int, skip: Function | None = None
    ):
        self.layers, self.heads, self.skipped = layers, heads, skipped
        self.skip = skip  # what heads add of the input itself, `(batch, …)` → as they give it

    def __call__(self, x: Floats) -> Floats:
        """All depths."""
        return self.ended(_states(self.layers, x), x)

    def ended(self, states: list[Floats], x: Floats) -> Floats:
        """What the heads make of the states of all layers."""
        found = self.heads(np.array(states[self.skipped :]))
        return found if self.skip is None else found + self.skip(x)


class JointPass:
    """The same of several networks of one kind, which may be of different depths.

    As deep as all of them are, a layer of all is one computation. So two take little longer than
    one where there are few rows.
    """

    def __init__(self, members: Sequence[Pass]):
        self.members = list(members)
        self.common = min(len(member.layers) for member in members)
        columns = zip(*(member.layers[: self.common] for member in members), strict=True)
        self.layers = [together(column) for column in columns]

    def __call__(self, x: Floats) -> list[Floats]:
        """`(batch, …)` → `(depth, batch, *event)` of each."""
        states = _states(self.layers, np.broadcast_to(x, (len(self.members), *x.shape)))
        found = []
        for place, member in enumerate(self.members):
            own = [state[place] for state in states]
            own += _states(member.layers[self.common :], own[-1])
            found.append(member.ended(own, x))
        return found


def _states(layers: Sequence[Function], state: Floats) -> list[Floats]:
    """What each of the layers gives, one after the other."""
    found = []
    for layer in layers:
        state = layer(state)
        found.append(state)
    return found


def numpy_pass(stack: Stack) -> Pass | None:
    """The pass of these modules; None unless all of them take part.

    Args:
        stack: modules in double precision, on the CPU, with a head for each depth from the first.
    """
    skip, modules = _skips(stack.heads)
    layers, heads = _each(stack.hidden), _each(modules)
    if layers is None or heads is None:
        return None

    def one_by_one(states: Floats) -> Floats:
        return np.array([head(state) for head, state in zip(heads, states, strict=True)])

    return Pass(layers, _as_one(modules) or one_by_one, stack.first - 1, skip)


def _skips(heads: Sequence[nn.Module]) -> tuple[Function | None, Sequence[nn.Module]]:
    """What heads add of the input, `(batch, …)` → `(depth, batch, *event)`, and the rest of them.

    Such heads are all of one class, which has a static method `skips_in_numpy` itself. Their rest
    is called `linear`.
    """
    kinds = {type(head) for head in heads}
    kind: Any = next(iter(kinds), None)
    offered = len(kinds) == 1 and "skips_in_numpy" in kind.__dict__
    if not offered or not all(is_plain(head, kind) for head in heads):
        return None, heads
    parts: list[Any] = list(heads)
    skip = kind.skips_in_numpy(parts)
    return (None, heads) if skip is None else (skip, [part.linear for part in parts])


def together(functions: Sequence[Function]) -> Function:
    """Each on its own row: `(member, batch, …)` → `(member, batch, …)`."""
    first = functions[0]
    if isinstance(first, Joinable) and len({type(function) for function in functions}) == 1:
        joined = first.joined(functions)
        if joined is not None:
            return joined
    return lambda x: np.array([f(row) for f, row in zip(functions, x, strict=True)])


def in_numpy(module: nn.Module) -> Function | None:
    """What the module computes in evaluation mode, as a function of arrays; None if it can't say.

    Asked of every module within as well: a hook anywhere makes it None.
    """
    own: Any = _linear if type(module) is nn.Linear else type(module).__dict__.get("in_numpy")
    if own is None or not is_plain(module, type(module)):
        return None
    found: Function | None = own(module)
    return found


def has_global_hooks() -> bool:
    """Whether somebody listens to modules of all kinds: then these are to be called."""
    return module_internals._has_any_global_hook()


def values(parameter: Tensor) -> Floats:
    """A parameter as an array: no copy."""
    return parameter.detach().numpy()


class Joinable(ABC):
    """A function of arrays that several networks may run as one."""

    @abstractmethod
    def __call__(self, x: Floats) -> Floats:
        """Of one network."""

    @abstractmethod
    def joined(self, functions: Sequence[Any]) -> Function | None:
        """All of these, which are of this class, with an axis of members in front; or None."""


class Chain(Joinable):
    """One after the other, the first one first."""

    def __init__(self, functions: Sequence[Function]):
        self.functions = functions

    def __call__(self, x: Floats) -> Floats:
        """All of them."""
        for function in self.functions:
            x = function(x)
        return x

    def joined(self, functions: Sequence["Chain"]) -> Function | None:
        """Part by part."""
        if len({len(one.functions) for one in functions}) > 1:
            return None
        columns = zip(*(one.functions for one in functions), strict=True)
        return Chain([together(column) for column in columns])


class Residual(Joinable):
    """h ↦ h + inner(h), where inner gives an array of its own."""

    def __init__(self, inner: Function):
        self.inner = inner

    def __call__(self, x: Floats) -> Floats:
        """The sum."""
        added = self.inner(x)
        added += x
        return added

    def joined(self, functions: Sequence["Residual"]) -> Function:
        """The inner ones as one."""
        return Residual(together([one.inner for one in functions]))


class Affine(Joinable):
    """W x + b: `(…, in)` → `(…, out)`."""

    def __init__(self, transposed: Floats, bias: Floats | None):
        self.transposed, self.bias = transposed, bias

    def __call__(self, x: Floats) -> Floats:
        """Of one network; of several where W and b have an axis of them."""
        # np.dot takes a third less time for one row.
        product = np.dot if self.transposed.ndim == 2 else np.matmul
        found: Floats = product(x, self.transposed)
        if self.bias is not None:
            found += self.bias
        return found

    def joined(self, functions: Sequence["Affine"]) -> Function | None:
        """A batch of products; copies of the weights."""
        biases = [one.bias for one in functions if one.bias is not None]
        if len({one.transposed.shape for one in functions}) > 1 or len(biases) < len(functions):
            return None
        transposed = np.ascontiguousarray([one.transposed for one in functions])
        return Affine(transposed, np.array(biases)[:, None])


class Normalise(Joinable):
    """LN(h), without parameters: `(…, width)` → the same."""

    def __init__(self, width: int):
        self.width = width
        # A product with these is a mean, in a third of the time that np.mean takes for one row.
        self.average = np.full((width, 1), 1 / width)
        self.of_one = self.average[:, 0]

    def __call__(self, x: Floats) -> Floats:
        """Mean 0 and deviation 1 along the last axis."""
        width = self.width
        if x.size == width:  # one row: its mean and variance are numbers, quicker than arrays
            row = x.reshape(width)
            row = row - row.dot(self.of_one)
            row *= 1 / math.sqrt(row.dot(row) / width + NORM_EPS)
            return row.reshape(x.shape)
        centred: Floats = x - np.dot(x, self.average)
        variance = np.dot(centred * centred, self.average)
        variance += NORM_EPS
        centred /= np.sqrt(variance, out=variance)
        return centred

    def joined(self, functions: Sequence["Normalise"]) -> Function | None:
        """Any of them, if they are of one width."""
        return self if len({one.width for one in functions}) == 1 else None


class Elementwise(Joinable):
    """A function of each number, which may write into its argument."""

    def __init__(self, function: Function):
        self.function = function

    def __call__(self, x: Floats) -> Floats:
        """Of an array of any shape."""
        return self.function(x)

    def joined(self, functions: Sequence["Elementwise"]) -> Function | None:
        """Any of them, if they are the same."""
        return self if all(one is self for one in functions) else None


def chain(*functions: Function | None) -> Function | None:
    """One after the other, the first one first; None if any is."""
    known = [function for function in functions if function is not None]
    return Chain(known) if len(known) == len(functions) else None


def residual(inner: Function | None) -> Function | None:
    """h ↦ h + inner(h), where inner gives an array of its own; None if inner is."""
    return None if inner is None else Residual(inner)


def affine(weight: Floats, bias: Floats | None) -> Function:
    """W x + b: `(rows, in)` → `(rows, out)`."""
    return Affine(weight.T, bias)


def activation_of(activation: Any) -> Function | None:
    """The function of arrays, which may write into its argument; None of a user's own."""
    known = isinstance(activation, Hashable) and activation in _ACTIVATIONS
    return _elementwise(activation) if known else None


@cache
def _elementwise(activation: Any) -> Elementwise:
    return Elementwise(_ACTIVATIONS[activation]())


def _mish(x: Floats) -> Floats:
    # tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2): of e = exp(20) on it is 1 to the last digit.
    e = np.minimum(x, 20.0)
    np.exp(e, out=e)
    share = e + 2.0
    share *= e
    np.add(share, 2.0, out=e)
    share /= e
    x *= share
    return x


def _times(gate: Function) -> Function:
    """x ↦ x gate(x)."""

    def function(x: Floats) -> Floats:
        x *= gate(x)
        return x

    return function


def _silu() -> Function:
    from scipy.special import expit  # in one step, and without an overflow

    return _times(expit)


def _gelu() -> Function:
    from scipy.special import ndtr  # NumPy has no error function

    return _times(ndtr)


_ACTIVATIONS: dict[Any, Callable[[], Function]] = {
    torch.relu: lambda: lambda x: np.maximum(x, 0.0, out=x),
    torch.tanh: lambda: lambda x: np.tanh(x, out=x),
    F.gelu: _gelu,
    F.silu: _silu,
    F.mish: lambda: _mish,
}


def _each(modules: Sequence[nn.Module]) -> list[Function] | None:
    found = [in_numpy(module) for module in modules]
    known = [function for function in found if function is not None]
    return known if len(known) == len(found) else None


def _linear(module: nn.Linear) -> Function:
    return affine(values(module.weight), None if module.bias is None else values(module.bias))


def _as_one(heads: Sequence[nn.Module]) -> Function | None:
    """Linear heads of one shape as one product, `(depth, rows, in)` → `(depth, rows, out)`."""
    linear = [head for head in heads if type(head) is nn.Linear and head.bias is not None]
    if len(linear) < len(heads) or len({head.weight.shape for head in linear}) > 1:
        return None
    weights = np.array([values(head.weight).T for head in linear])
    biases = np.array([values(head.bias) for head in linear])[:, None]

    def function(states: Floats) -> Floats:
        found: Floats = np.matmul(states, weights)
        found += biases
        return found

    return function
