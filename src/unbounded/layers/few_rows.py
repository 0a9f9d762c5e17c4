"""A pass of few rows in NumPy: there torch spends most of its time between operations, not in them.

A module takes part if its class itself has a method `in_numpy`, which gives what `forward` does in
evaluation mode as a function of arrays. A class that is derived from it may do something else, so
it has to say so itself. Parameters are read as they are now, without a copy, in double precision:
who keeps such a function watches the parameters, or keeps a copy that nobody changes
(`unbounded.estimators.prepared`).
"""

import math
from collections.abc import Callable, Hashable, Sequence
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


def numpy_pass(stack: Stack) -> Function | None:
    """x ↦ Ω_ℓ(x), `(batch, …)` → `(depth, batch, *event)`; None unless all modules take part.

    Args:
        stack: modules in double precision, on the CPU, with a head for each depth from the first.
    """
    layers, heads = _each(stack.hidden), _each(stack.heads)
    if layers is None or heads is None:
        return None
    linear = _as_one(stack.heads)
    skipped = stack.first - 1

    def outputs(x: Floats) -> Floats:
        states = []
        state = x
        for layer in layers:
            state = layer(state)
            states.append(state)
        if linear is not None:
            return linear(np.array(states[skipped:]))
        pairs = zip(heads, states[skipped:], strict=True)
        return np.array([head(state) for head, state in pairs])

    return outputs


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


def chain(*functions: Function | None) -> Function | None:
    """One after the other, the first one first; None if any is."""
    known = [function for function in functions if function is not None]
    if len(known) < len(functions):
        return None

    def function(x: Floats) -> Floats:
        for one in known:
            x = one(x)
        return x

    return function


def residual(inner: Function | None) -> Function | None:
    """h ↦ h + inner(h), where inner gives an array of its own."""
    if inner is None:
        return None

    def function(h: Floats) -> Floats:
        added = inner(h)
        added += h
        return added

    return function


def affine(weight: Floats, bias: Floats | None) -> Function:
    """W x + b: `(rows, in)` → `(rows, out)`."""
    transposed = weight.T

    def function(x: Floats) -> Floats:
        found: Floats = np.dot(x, transposed)
        if bias is not None:
            found += bias
        return found

    return function


def normalise(width: int) -> Function:
    """LN(h), without parameters: `(rows, width)` → the same."""
    # A product with these is a mean, in a third of the time that np.mean takes for one row.
    average = np.full((width, 1), 1 / width)
    of_one = average[:, 0]

    def function(h: Floats) -> Floats:
        if h.size == width:  # one row: its mean and variance are numbers, quicker than arrays
            row = h.reshape(width)
            row = row - row.dot(of_one)
            row *= 1 / math.sqrt(row.dot(row) / width + NORM_EPS)
            return row.reshape(h.shape)
        centred: Floats = h - np.dot(h, average)
        variance = np.dot(centred * centred, average)
        variance += NORM_EPS
        centred /= np.sqrt(variance, out=variance)
        return centred

    return function


def activation_of(activation: Any) -> Function | None:
    """The function of arrays, which may write into its argument; None of a user's own."""
    make = _ACTIVATIONS.get(activation) if isinstance(activation, Hashable) else None
    return None if make is None else make()


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
