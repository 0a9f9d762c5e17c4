"""Dense layers for tables that many members share, apart from small factors of their own."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers import init as inits
from unbounded.layers.dense import Activation, _size
from unbounded.layers.dense_passes import NORM_EPS
from unbounded.layers.few_rows import (
    Floats,
    Function,
    Normalise,
    activation_of,
    chain,
    in_numpy,
    residual,
    values,
)
from unbounded.layers.tables import TableDense, Waves


class TrunkDense(TableDense):
    """`TableDense` for an ensemble in one network: k members share every matrix.

    In each layer member m has factors for what goes into the matrix W and for what comes out of it,
    and a bias: φ(s_m ⊙ W(r_m ⊙ h) + b_m) (BatchEnsemble, Wen et al., 2020; TabM, Gorishniy et al.,
    2025). Heads are each member's own. At first all factors are 1, those before the first matrix ±1
    at random: the members begin as networks of different first layers. One q(ℓ) holds for all.

    Heads give `(batch, member, out_features)`, the parameters of k likelihoods: the likelihood is
    `Members(…, k)`.

    Args:
        in_features: columns, about in units of their spread.
        width: size of every hidden state.
        out_features: size of the output of one member's head.
        members: k.
        activation: as in `Dense`. For many rows Mish, smooth like SiLU, takes five times as long.
        rest: the other arguments of `TableDense`.
    """

    rows_axis = 1  # behind the members

    def __init__(
        self,
        in_features: int,
        width: int,
        out_features: int,
        *,
        members: int = 16,
        activation: str | Activation = "silu",
        **rest: Any,
    ):
        super().__init__(in_features, width, out_features, activation=activation, **rest)
        self.members = _size("members", members)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features)` or `(member, batch, width)` → `(member, batch, width)`."""
        if depth > 1:
            linear = MemberLinear(self.width, self.width, self.members, self._init)
            return TrunkLayer(linear, self._activation)
        waves = self._waves()
        linear = MemberLinear(waves.out_features, self.width, self.members, self._init)
        if self.members > 1:
            with torch.no_grad():
                linear.before.bernoulli_(0.5).mul_(-2)
        return FirstTrunkLayer(waves, linear, self._activation)

    def head(self, depth: int) -> nn.Module:
        """`(member, batch, width)` → `(batch, member, out_features)`; zero at first."""
        return MemberHead(self.width, self.out_features, self.members)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return {**super().config(), "members": self.members}


class MemberLinear(nn.Module):
    """One matrix with factors and biases of each member.

    `(batch, in)` or `(member, batch, in)` → `(member, batch, out)`. Members are folded into the
    batch: their rows go through the matrix as one product. What is kept of a factor is by how much
    it differs from 1, so that priors and decay draw members towards each other, not towards 0.
    """

    def __init__(self, in_features: int, out_features: int, members: int, init: inits.Init):
        super().__init__()
        one = nn.Linear(in_features, out_features)
        init(one)
        self.weight = nn.Parameter(one.weight.detach())
        self.bias = nn.Parameter(one.bias.detach().repeat(members, 1, 1))
        self.before = nn.Parameter(torch.zeros(members, 1, in_features))
        self.after = nn.Parameter(torch.zeros(members, 1, out_features))

    def forward(self, input: Tensor) -> Tensor:
        """s ⊙ W(r ⊙ h) + b of every member."""
        mapped = F.linear(input * (1 + self.before), self.weight)
        return torch.addcmul(self.bias, mapped, 1 + self.after)

    def in_numpy(self) -> Function:
        """The same of arrays, for few rows."""
        weight, bias = values(self.weight).T, values(self.bias)
        before, after = 1 + values(self.before), 1 + values(self.after)

        def function(h: Floats) -> Floats:
            rows = h * before
            mapped = np.dot(rows.reshape(-1, len(weight)), weight)
            found: Floats = mapped.reshape(*rows.shape[:-1], -1)
            found *= after
            found += bias
            return found

        return function


class FirstTrunkLayer(nn.Module):
    """Waves, which all members share, a linear map and an activation."""

    def __init__(self, waves: Waves, linear: MemberLinear, activation: Activation):
        super().__init__()
        self.waves = waves
        self.linear = linear
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, column)` → `(member, batch, width)`."""
        return self.activation(self.linear(self.waves(input)))

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        activation = activation_of(self.activation)
        return chain(in_numpy(self.waves), in_numpy(self.linear), activation)


class TrunkLayer(nn.Module):
    """h + φ(…LN(h)…), as `PreNormDense` has it, of every member."""

    def __init__(self, linear: MemberLinear, activation: Activation):
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """`(member, batch, width)` → `(member, batch, width)`."""
        normed = F.layer_norm(input, input.shape[-1:], eps=NORM_EPS)
        return input + self.activation(self.linear(normed))

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        norm = Normalise(self.linear.weight.shape[1])
        return residual(chain(norm, in_numpy(self.linear), activation_of(self.activation)))


class MemberHead(nn.Module):
    """A linear head for each member."""

    def __init__(self, width: int, out_features: int, members: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, width, out_features))
        self.bias = nn.Parameter(torch.zeros(members, 1, out_features))

    def forward(self, input: Tensor) -> Tensor:
        """`(member, batch, width)` → `(batch, member, out_features)`."""
        return torch.baddbmm(self.bias, input, self.weight).transpose(0, 1)

    def in_numpy(self) -> Function:
        """The same of arrays, for few rows."""
        weight, bias = values(self.weight), values(self.bias)
        return lambda h: (np.matmul(h, weight) + bias).swapaxes(0, 1)
