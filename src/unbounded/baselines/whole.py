"""Networks of other kinds as the only layer of a model, so that `fit` trains them like any other.

With `FixedDepth(1)` a `UDN` is a plain network: its layer 1 is all of the network but the head.
Likelihood, prior, engines, checkpoints and scores are those of every other model.
"""

import importlib
from abc import abstractmethod
from types import ModuleType
from typing import Any

from torch import nn

from unbounded.depth import FixedDepth
from unbounded.layers import Layers
from unbounded.layers import init as inits
from unbounded.layers.convolutional import PooledLinear
from unbounded.likelihoods import Likelihood
from unbounded.model import UDN


class Whole(Layers):
    """A generator with one layer, the whole network, and one head.

    Args:
        in_channels: of the images.
        out_features: size of the head's output: what the likelihood takes.
    """

    def __init__(self, in_channels: int, out_features: int):
        self.in_channels, self.out_features = in_channels, out_features

    @abstractmethod
    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features, …)`."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """How many numbers or channels the head takes."""

    def hidden(self, depth: int) -> nn.Module:
        """The network, which stands at depth 1 alone."""
        if depth != 1:
            raise ValueError(f"{type(self).__name__} has one layer, depth {depth} was asked for")
        return self.features()

    def head(self, depth: int) -> nn.Module:
        """A mean over the image and a linear map that begins at zero, as those of the UDN."""
        head = PooledLinear(self.num_features, self.out_features)
        inits.zero(head)
        return head

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return dict(vars(self))


def plain(layers: Layers, likelihood: Likelihood, *, seed: int = 0) -> UDN:
    """The network as a model for `fit`: depth 1 for certain.

    Args:
        layers: a `Whole`, perhaps behind a whitening.
        likelihood: p(y; Ω).
        seed: of the first weights.
    """
    return UDN(layers, likelihood, FixedDepth(1), seed=seed)


def extra(package: str) -> ModuleType:
    """A package of the extra `baselines`.

    Raises:
        ImportError: if it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(
            f"{package} is not installed: pip install 'unbounded[baselines]'"
        ) from None
