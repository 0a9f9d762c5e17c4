"""Depth Uncertainty Networks (Antorán et al., 2020), in two forms, and for images.

The paper compares with a variant of its authors: the UDN's own layers, depths 1 … D with free
probabilities, one head for all of them. As their own paper defines them, DUNs have an input
layer, residual blocks with batch normalisation, and an output layer, and may stop at any block
or before the first one. For images they are made of the UDN's own residual blocks.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.depth import FiniteDepth
from unbounded.layers import Dense, Layers, ResidualConv
from unbounded.layers import init as inits
from unbounded.layers.convolutional import PooledLinear, pooled
from unbounded.likelihoods import Likelihood
from unbounded.model import UDN
from unbounded.priors import UniformDepth


class DUNLayers(Layers):
    """An affine input layer, blocks h + BN(ReLU(W h + b)), and one output layer for all depths.

    Depth ℓ here is ℓ−1 blocks: a DUN that stops before its first block has depth 1.

    Args:
        in_features: size of the input.
        width: size of every hidden state.
        out_features: size of the output layer.
        init: "default", "he" or a callable, for the blocks' linear maps.
    """

    shares_head = True

    def __init__(
        self, in_features: int, width: int, out_features: int, init: str | inits.Init = "default"
    ):
        self.in_features, self.width, self.out_features = in_features, width, out_features
        self.init = init
        self._init = inits.resolve(init)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features or width)` → `(batch, width)`."""
        if depth == 1:
            return nn.Linear(self.in_features, self.width)
        return DUNBlock(self.width, self._init)

    def head(self, depth: int) -> nn.Module:
        """`(batch, width)` → `(batch, out_features)`."""
        return nn.Linear(self.width, self.out_features)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        if not isinstance(self.init, str):
            raise NotImplementedError("init is a callable, which a file does not carry")
        return {
            "in_features": self.in_features,
            "width": self.width,
            "out_features": self.out_features,
            "init": self.init,
        }


class DUNBlock(nn.Module):
    """h + BN(ReLU(W h + b)): `(batch, width)` → `(batch, width)`."""

    def __init__(self, width: int, init: inits.Init):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        init(self.linear)

    def forward(self, input: Tensor) -> Tensor:
        """The block's sum."""
        normed: Tensor = self.norm(self.linear(input).relu())
        return input + normed


def dun_of(layers: Layers, likelihood: Likelihood, max_depth: int, *, seed: int = 0) -> UDN:
    """DUN of any layers: depths 1 … D with free probabilities against a uniform prior.

    For images, `SharedHeadConv` has one head for all depths, `ResidualConv` one for each.
    """
    return UDN(layers, likelihood, FiniteDepth(max_depth), UniformDepth(max_depth), seed=seed)


def dun(
    in_features: int,
    width: int,
    out_features: int,
    likelihood: Likelihood,
    *,
    max_depth: int = 10,
    init: str | inits.Init | None = None,
    layers: type[Dense] = Dense,
    seed: int = 0,
) -> UDN:
    """DUN as the paper's authors ran it: dense layers 1 … D, no normalisation, a shared head.

    Other dense layers, such as `PreNormDense`, make one that is to be compared with UDNs of them.
    """
    generator = layers(in_features, width, out_features, init=init, shares_head=True)
    return dun_of(generator, likelihood, max_depth, seed=seed)


def dun_original(
    in_features: int,
    width: int,
    out_features: int,
    likelihood: Likelihood,
    *,
    blocks: int = 10,
    init: str | inits.Init = "default",
    seed: int = 0,
) -> UDN:
    """DUN as its own paper defines it: 0 … `blocks` residual blocks with batch normalisation.

    The weights have the same prior here as everywhere else in this library, where the original
    uses a weight decay.
    """
    layers = DUNLayers(in_features, width, out_features, init)
    return dun_of(layers, likelihood, blocks + 1, seed=seed)


class SharedHeadConv(ResidualConv):
    """`ResidualConv` with one head for all depths, as a DUN has it.

    Stages differ in their channels. The head is that of the last stage; where a depth has fewer
    channels, the others are zeros to it. Arguments are those of `ResidualConv`.
    """

    shares_head = True

    def head(self, depth: int) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, out_features)`."""
        endless = 2 + sum(self.stages)
        head = PaddedLinear(self.shape(endless).outputs, self.out_features)
        if self.init != "default":
            inits.zero(head)
        return head


class PaddedLinear(PooledLinear):
    """A mean over the image, zeros for channels that are not there, and a linear map."""

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, *image)` → `(batch, out_features)`."""
        mean = pooled(input).to(self.weight.dtype)
        # The same as zeros behind the features, without multiplying by them.
        return F.linear(mean, self.weight[:, : mean.shape[1]], self.bias)
