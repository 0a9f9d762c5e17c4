"""A fixed first convolution that makes the patches of training images white."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers.base import Layers, Stack
from unbounded.layers.convolutional import PooledLayer

_MOST_IMAGES = 5000


def whitening_filters(images: Tensor, size: int = 3, floor: float = 1e-3) -> Tensor:
    """Filters after which the patches of these images have the identity as covariance.

    The principal axes of all patches, each divided by the root of its variance, the widest first.

    Args:
        images: `(rows, channel, height, width)`, centred; of many the first 5,000 are looked at.
        size: side of a patch, odd.
        floor: is added to the variances, so that axes of hardly any do not become noise.

    Returns:
        `(channel·size², channel, size, size)`, for a convolution.
    """
    if size < 1 or size % 2 == 0:
        raise ValueError(f"size must be odd, got {size}")
    channels = images.shape[1]
    count = channels * size**2
    total, seen = torch.zeros(count, count, dtype=torch.float64), 0
    for piece in images[:_MOST_IMAGES].split(500):
        patches = F.unfold(piece.float(), size).transpose(1, 2).reshape(-1, count).double()
        total += (patches.T @ patches).cpu()
        seen += len(patches)
    variances, axes = torch.linalg.eigh(total / seen)
    axes = axes.T.flip(0)
    # A direction and its opposite are both right: the largest entry is positive, everywhere.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    filters = axes * largest.sign() / (variances.flip(0).clamp(min=0) + floor).sqrt()[:, None]
    return filters.float().view(count, channels, size, size)


class Whitened(Layers):
    """Other layers behind a fixed convolution.

    Args:
        inner: a generator for images with as many channels as there are filters.
        filters: of `whitening_filters`. They are a buffer of layer 1: saved, and never trained.
    """

    def __init__(self, inner: Layers, filters: Tensor):
        self.inner, self.filters = inner, filters
        self.shares_head, self.reference = inner.shares_head, inner.reference
        self.has_fixed_steps = inner.has_fixed_steps

    def hidden(self, depth: int) -> nn.Module:
        """That of the inner layers; the first one behind the filters."""
        layer = self.inner.hidden(depth)
        return WhitenedLayer(layer, self.filters) if depth == 1 else layer

    def head(self, depth: int) -> nn.Module:
        """That of the inner layers."""
        return self.inner.head(depth)

    def config(self) -> dict[str, Any]:
        """The filters, and what there is to know of the layers behind them."""
        inner = {"kind": type(self.inner).__name__, **self.inner.config()}
        return {"inner": inner, "filters": self.filters.tolist()}

    def run(self, stack: Stack, x: Tensor) -> Tensor | None:
        """The inner layers' faster way, if they have one."""
        return self.inner.run(stack, x)


class WhitenedLayer(PooledLayer):
    """A layer behind fixed filters, which are applied in single precision at least."""

    def __init__(self, layer: nn.Module, filters: Tensor):
        super().__init__()
        self.layer = layer
        self.filters: Tensor
        self.register_buffer("filters", filters.clone())

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, height, width)` → what the layer makes of the whitened image."""
        with torch.autocast(input.device.type, enabled=False):
            # Axes of little variance are made as large as the others: rounding would be, too.
            white = F.conv2d(
                input.to(self.filters.dtype), self.filters, padding=self.filters.shape[-1] // 2
            )
        found: Tensor = self.layer(white)
        return found
