"""Fully connected layers, plain and residual."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers import init as inits
from unbounded.layers.base import Layers, Stack, all_plain, is_plain
from unbounded.layers.dense_passes import NORM_EPS, WRITTEN, dense_outputs
from unbounded.layers.dense_stack import DenseStack
from unbounded.layers.few_rows import (
    Function,
    Normalise,
    activation_of,
    affine,
    chain,
    in_numpy,
    residual,
    values,
)
from unbounded.layers.stacks import NetworkStack

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
}


class Dense(Layers):
    """The paper's fully connected generator: f_ℓ a linear map and an activation, o_ℓ linear.

    Args:
        in_features: size of the input x; inputs of more axes are not flattened for you.
        width: size of every hidden state (32 on the paper's spirals).
        out_features: size of a head's output: what the likelihood takes.
        activation: "relu", "tanh", "gelu", "silu", "mish" or a callable; None takes the
            class's own.
        init: "default" (torch's, the paper's), "he", or a callable that fills an `nn.Linear`
            of a hidden layer; None takes the class's own. Heads keep torch's default.
        shares_head: one head for all depths, as in Depth Uncertainty Networks.
    """

    usual_init: ClassVar[str] = "default"
    """The initialisation where none is given."""

    usual_activation: ClassVar[str] = "relu"
    """The activation where none is given."""

    is_pre_norm: ClassVar[bool] = False
    """Whether layers behind the first normalise what they read, and add to it."""

    def __init__(
        self,
        in_features: int,
        width: int,
        out_features: int,
        *,
        activation: str | Activation | None = None,
        init: str | inits.Init | None = None,
        shares_head: bool = False,
    ):
        self.in_features = _size("in_features", in_features)
        self.width = _size("width", width)
        self.out_features = _size("out_features", out_features)
        self.activation = self.usual_activation if activation is None else activation
        self.init = self.usual_init if init is None else init
        self.shares_head = shares_head
        self._activation = _resolve_activation(self.activation)
        self._init = inits.resolve(self.init)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features or width)` → `(batch, width)`."""
        layer = self._kind(depth)(self._inputs(depth), self.width, self._activation)
        self._init(layer)
        return layer

    def head(self, depth: int) -> nn.Module:
        """`(batch, width)` → `(batch, out_features)`."""
        return nn.Linear(self.width, self.out_features)

    def run(self, stack: Stack, x: Tensor) -> Tensor | None:
        """All layers and heads as one operation, where they are plain and x is as expected.

        Pre-norm layers are left to autograd: of these, one network alone gains too little.
        """
        hidden, heads, inputs = stack.hidden, stack.heads, x.shape[-1]
        if not (
            self._is_written()
            and WRITTEN[str(self.activation)].keeps_value
            and not stack.is_differentiated_freely
            and len(heads) == len(hidden) - stack.first + 1
            and x.dim() == 2
            and not torch.is_autocast_enabled(x.device.type)
            and all_plain(hidden, DenseLayer)
            and all_plain(heads, nn.Linear)
            and all(layer.activation is self._activation for layer in hidden)
        ):
            return None
        parameters = [p for module in (*hidden, *heads) for p in module._parameters.values()]
        width, out = self.width, self.out_features
        expected = [(width, inputs), (width,), *[(width, width), (width,)] * (len(hidden) - 1)]
        expected += [(out, width), (out,)] * len(heads)
        found = [None if p is None or p.dtype != x.dtype else p.shape for p in parameters]
        if found != expected:
            return None  # the modules tell what is wrong, or cast
        return dense_outputs(x, parameters, len(hidden), stack.first, str(self.activation))

    def stacked(
        self, hidden: Sequence[Sequence[nn.Module]], heads: Sequence[nn.Module]
    ) -> type[NetworkStack] | None:
        """Batched products by hand, for plain layers with an activation of `WRITTEN`."""
        layers = [layer for of_one in hidden for layer in of_one]
        made = (
            type(self) in (Dense, PreNormDense)
            and self._is_written()
            and all(
                is_plain(layer, self._kind(depth))
                for of_one in hidden
                for depth, layer in enumerate(of_one, 1)
            )
            and all(layer.activation is self._activation for layer in layers)
            and all(is_plain(head, nn.Linear) for head in heads)
        )
        parameters = [p for module in (*layers, *heads) for p in module._parameters.values()]
        trained = all(p is not None and p.requires_grad for p in parameters)
        return DenseStack if made and trained else None

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        for name in ("activation", "init"):
            if not isinstance(getattr(self, name), str):
                raise NotImplementedError(
                    f"{name} is a callable, which a file does not carry: "
                    "pass the layers to unbounded.load yourself"
                )
        return {
            "in_features": self.in_features,
            "width": self.width,
            "out_features": self.out_features,
            "activation": self.activation,
            "init": self.init,
            "shares_head": self.shares_head,
        }

    def _is_written(self) -> bool:
        """Whether the activation is one of `WRITTEN`; a user's own may have no hash."""
        return isinstance(self.activation, str) and self.activation in WRITTEN

    def _inputs(self, depth: int) -> int:
        return self.in_features if depth == 1 else self.width

    def _kind(self, depth: int) -> type["DenseLayer"]:
        return PreNormDenseLayer if self.is_pre_norm and depth > 1 else DenseLayer


class ResidualDense(Dense):
    """Residual blocks: f_1 as in `Dense`, then h_ℓ = h_{ℓ−1} + B_ℓ φ(A_ℓ h_{ℓ−1}).

    Args:
        identity: start B_ℓ at zero, so that a new block is the identity and its birth leaves
            everything behind it as it was.
        rest: the other arguments of `Dense`; `init` is "he" by default.
    """

    usual_init = "he"

    def __init__(
        self, in_features: int, width: int, out_features: int, *, identity: bool = True, **rest: Any
    ):
        super().__init__(in_features, width, out_features, **rest)
        self.identity = bool(identity)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features or width)` → `(batch, width)`."""
        if depth == 1:
            return super().hidden(depth)
        block = ResidualDenseLayer(self.width, self._activation)
        self._init(block.inner)
        if self.identity:
            inits.zero(block.outer)
        else:
            self._init(block.outer)
        return block

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return {**super().config(), "identity": self.identity}


class PreNormDense(Dense):
    """Layers that a new depth does not hurt: f_1 as in `Dense`, then h_ℓ = h + φ(W_ℓ LN(h) + b_ℓ).

    LN brings each hidden state to mean 0 and deviation 1, without parameters of its own. What the
    layers before have found stays in the sum, so that deeper networks are as easy to train as
    shallow ones, and a layer more changes little of what the heads behind it see. φ is GELU if
    nothing else is said: with it, fast spirals are learnt in a quarter of ReLU's time, and better.
    """

    usual_init = "he"
    usual_activation = "gelu"
    is_pre_norm = True
    # Deeper than other layers' own: to come down from there loses little, to climb is slow, since
    # the heads of one network that are neighbours soon agree.
    reference = (12.0, 6.0)


class DenseLayer(nn.Linear):
    """A linear map and an activation in one module: half the calls of an `nn.Sequential`."""

    def __init__(self, in_features: int, width: int, activation: Activation):
        super().__init__(in_features, width)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """φ(W h + b): `(batch, in_features)` → `(batch, width)`."""
        return self.activation(F.linear(input, self.weight, self.bias))

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        linear = affine(values(self.weight), values(self.bias))
        return chain(linear, activation_of(self.activation))


class PreNormDenseLayer(DenseLayer):
    """h + φ(W LN(h) + b): `(batch, width)` → `(batch, width)`."""

    def forward(self, input: Tensor) -> Tensor:
        """The sum of the layer's input and of what it adds."""
        return input + super().forward(F.layer_norm(input, input.shape[-1:], eps=NORM_EPS))

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        return residual(chain(Normalise(self.in_features), super().in_numpy()))


class ResidualDenseLayer(nn.Module):
    """h + B φ(A h): `(batch, width)` → `(batch, width)`."""

    def __init__(self, width: int, activation: Activation):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """h + B φ(A h)."""
        return input + self.outer(self.activation(self.inner(input)))

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        activation = activation_of(self.activation)
        return residual(chain(in_numpy(self.inner), activation, in_numpy(self.outer)))


def _resolve_activation(activation: str | Activation) -> Activation:
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be a callable or one of {sorted(ACTIVATIONS)}, got {activation!r}"
        )
    return ACTIVATIONS[activation]


def _size(name: str, value: int) -> int:
    endless = isinstance(value, float) and not math.isfinite(value)
    if endless or isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)
