"""Convolutional residual layers for images: the paper's generator on CIFAR-10."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers import init as inits
from unbounded.layers.base import LayerError, Layers, Stack, all_plain, layer_error
from unbounded.layers.dense import _size

_ONEDNN_BLOCK = 8  # channels


class Form(NamedTuple):
    """What a kind of block brings with it."""

    expansion: int  # channels that go out, for each inside
    stages: tuple[int, ...]  # blocks of each stage but the last
    strides: tuple[int, ...]  # of the first block of each stage


FORMS = {
    # The paper's: B_k ends with 2^(k+2) channels, four times those inside of it.
    "bottleneck": Form(4, (3, 5), (2, 2, 2)),
    # ResNet-18's: depth 9 is that network, whose last stage has no end here.
    "basic": Form(1, (2, 2, 2), (1, 2, 2, 2)),
}
"""Kinds of blocks, and the stages that they have unless told otherwise."""


class LayerShape(NamedTuple):
    """Channels and stride of the layer at one depth."""

    inputs: int  # channels that come in
    inner: int  # channels inside the block; 0 for the stem
    outputs: int  # channels that go out
    stride: int


class ResidualConv(Layers):
    """The paper's convolutional generator (appendix on CIFAR-10), for any depth.

    Layer 1 is a stem: a 3×3 convolution, batch normalisation, ReLU. From layer 2 on stand
    bottleneck blocks B_6, B_7, B_8: convolutions 1×1, 3×3 and 1×1, each with batch normalisation,
    and a shortcut. The first block of each stage halves the image; the last stage has no end. With
    the defaults B_6 is at depths 2–4, B_7 at 5–9 and B_8 from 10 on. The paper counts the blocks
    from 1; its results were made with the stem in that place, and so is this.

    With `block="basic"` blocks are two convolutions 3×3 in four stages of 64, 128, 256 and 512
    channels: ResNet-18 (He et al., 2016) at depth 9, and further blocks of its last stage beyond.

    Heads are a mean over the image and a linear map.

    Args:
        in_channels: of the images.
        out_features: size of a head's output: what the likelihood takes.
        width: channels of the stem and inside the first stage's blocks; each later stage doubles.
        block: "bottleneck" (1×1, 3×3, 1×1) or "basic" (3×3, 3×3).
        stages: how many blocks each stage has but the last; (3, 5) and (2, 2, 2) for these.
        strides: of the first block of each stage, one more than `stages`; (2, 2, 2) and
            (1, 2, 2, 2).
        init: how a new block starts. "identity": weights by He, the last normalisation's scale
            at zero, so that a new block passes its input on and a birth leaves deeper heads
            nothing to unlearn. "he": weights by He, scale one. "default": torch's own, as the
            paper's authors.

    Example:
        >>> layers = ResidualConv(3, 10)
        >>> layers.shape(1).outputs, layers.shape(10)
        (64, LayerShape(inputs=512, inner=256, outputs=1024, stride=2))
        >>> ResidualConv(3, 10, block="basic").shape(8)
        LayerShape(inputs=256, inner=512, outputs=512, stride=2)
    """

    INITS = ("identity", "he", "default")

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        *,
        width: int = 64,
        block: str = "bottleneck",
        stages: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        init: str = "identity",
    ):
        if block not in FORMS:
            raise ValueError(f"block must be one of {tuple(FORMS)}, got {block!r}")
        self.block = block
        usual = FORMS[block]
        self.in_channels = _size("in_channels", in_channels)
        self.out_features = _size("out_features", out_features)
        self.width = _size("width", width)
        stages = usual.stages if stages is None else stages
        strides = usual.strides if strides is None else strides
        self.stages = tuple(_size("stages", blocks) for blocks in stages)
        self.strides = tuple(_size("strides", stride) for stride in strides)
        if len(self.strides) != len(self.stages) + 1:
            raise ValueError(
                f"strides must be one for each stage, {len(self.stages) + 1} with the endless "
                f"last one, got {len(self.strides)}"
            )
        if init not in self.INITS:
            raise ValueError(f"init must be one of {self.INITS}, got {init!r}")
        self.init = init

    @property
    def reference(self) -> tuple[float, float]:  # type: ignore[override]
        """A little beyond the depth at which the last stage begins, and narrow.

        A network without its last stage is another one, and the heads of its earlier stages are
        weak: with mass on them, layers serve them instead of what comes after.
        """
        return 4.0 + sum(self.stages), 1.5

    def shape(self, depth: int) -> LayerShape:
        """Channels and stride of the layer at depth ℓ."""
        if depth == 1:
            return LayerShape(self.in_channels, 0, self.width, 1)
        start, inner, inputs = 2, self.width, self.width
        expansion = FORMS[self.block].expansion
        for stage, stride in enumerate(self.strides):
            if stage == len(self.stages) or depth < start + self.stages[stage]:
                outputs = expansion * inner
                if depth == start:
                    return LayerShape(inputs, inner, outputs, stride)
                return LayerShape(outputs, inner, outputs, 1)
            start, inner, inputs = start + self.stages[stage], 2 * inner, expansion * inner
        raise AssertionError("the last stage has no end")

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, channel, height, width)` → the same with the channels of `shape(depth)`."""
        shape = self.shape(depth)
        layer: nn.Module
        if depth == 1:
            layer = Stem(shape.inputs, shape.outputs)
        else:
            layer = BLOCKS[self.block](shape)
        if self.init != "default":
            he_(layer)
        if self.init == "identity" and isinstance(layer, Block):
            nn.init.zeros_(layer.last_norm.weight)
        return layer

    def head(self, depth: int) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, out_features)`."""
        head = PooledLinear(self.shape(depth).outputs, self.out_features)
        if self.init != "default":
            inits.zero(head)  # the first prediction of every depth is the uniform one
        return head

    def run(self, stack: Stack, x: Tensor) -> Tensor | None:
        """Each layer with its mean over the image in one call, then the heads stage by stage."""
        heads = [head for head in stack.heads if isinstance(head, PooledLinear)]
        if not (
            all(isinstance(layer, PooledLayer) for layer in stack.hidden)
            and all_plain(stack.heads, PooledLinear)
            and len(heads) == len(stack.hidden) - stack.first + 1
        ):
            return None
        features: list[Tensor] = []
        hidden, depth = x, 0
        try:
            for depth, layer in enumerate(stack.hidden, 1):
                if depth < stack.first:
                    hidden = stack.call(layer)(hidden)
                else:
                    hidden, mean = stack.call(layer, "with_pooled")(hidden)
                    features.append(mean)
        except (RuntimeError, ValueError, IndexError) as error:
            raise layer_error("layer", depth, hidden, error) from error
        outputs: list[Tensor] = []
        start = 0
        while start < len(features):
            stop = start + 1
            while stop < len(features) and features[stop].shape == features[start].shape:
                stop += 1
            with torch.autocast(x.device.type, enabled=False):  # their share of the work is small
                outputs.append(
                    _linear(features[start:stop], heads[start:stop], stack.first + start)
                )
            start = stop
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return {
            "in_channels": self.in_channels,
            "out_features": self.out_features,
            "width": self.width,
            "block": self.block,
            "stages": list(self.stages),
            "strides": list(self.strides),
            "init": self.init,
        }


class Norm(nn.BatchNorm2d):
    """Batch normalisation without its count of batches, which costs a kernel and serves nobody."""

    def __init__(self, channels: int):
        super().__init__(channels)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # Not that of torch, which adds a count where a file without versions has none.
        super(nn.modules.batchnorm._NormBase, self)._load_from_state_dict(*arguments)


class Pointwise(nn.Conv2d):
    """A convolution 1×1, perhaps with a stride."""

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, inputs, height, width)` → `(batch, outputs, height/stride, width/stride)`."""
        if input.device.type == "cpu" and self.in_channels < _ONEDNN_BLOCK:
            # The same numbers without the stride. On CPUs with AVX2 and no more, oneDNN's gradient
            # of such strided weights writes beyond its memory and the process aborts (torch 2.13).
            down, across = self.stride
            return F.conv2d(input[..., ::down, ::across], self.weight, self.bias)
        return super().forward(input)


class PooledLinear(nn.Linear):
    """A mean over all axes behind the channels, and a linear map."""

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, *image)` → `(batch, out_features)`."""
        return F.linear(pooled(input).to(self.weight.dtype), self.weight, self.bias)


def pooled(state: Tensor) -> Tensor:
    """The mean over the image, in single precision at least: `(batch, channel)`.

    A state that has no image any more passes through: it has been pooled already.
    """
    if state.dim() <= 2:
        return state
    dtype = torch.promote_types(state.dtype, torch.float32)
    return state.mean(tuple(range(2, state.dim())), dtype=dtype)


def _linear(features: Sequence[Tensor], heads: Sequence[PooledLinear], first: int) -> Tensor:
    """Linear maps of one shape as one batched product, `(depth, batch, out)`."""
    weights = torch.stack([head.weight for head in heads])
    if weights.shape[2] != features[0].shape[1]:
        raise LayerError(
            f"head {first} takes {weights.shape[2]} features, "
            f"layer {first} gives {features[0].shape[1]} channels"
        )
    stacked = torch.stack([feature.to(weights.dtype) for feature in features])
    biases = torch.stack([head.bias for head in heads])
    return torch.baddbmm(biases.unsqueeze(1), stacked, weights.transpose(1, 2))


class PooledLayer(nn.Module):
    """A layer that hands its mean over the image to a head together with its state.

    Computed in one compiled block the two share a pass over memory, forwards and backwards.
    """

    def with_pooled(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """h_ℓ and its mean over the image, `(batch, channel)`."""
        state = self(input)
        return state, pooled(state)


class Stem(PooledLayer):
    """Convolution 3×3, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = Norm(outputs)

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, inputs, height, width)` → `(batch, outputs, height, width)`."""
        return torch.relu(self.norm(self.conv(input)))


class Block(PooledLayer):
    """A residual block: ReLU(shortcut + convolutions), each with batch normalisation."""

    shortcut: nn.Module | None

    def __init__(self, shape: LayerShape):
        super().__init__()

    @property
    def last_norm(self) -> Norm:
        """The normalisation before the sum."""
        raise NotImplementedError

    def branch(self, input: Tensor) -> Tensor:
        """What is added to the shortcut."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, inputs, height, width)` → `(batch, outputs, height/stride, width/stride)`."""
        added = self.branch(input)
        passed = input if self.shortcut is None else self.shortcut(input)
        return torch.relu(added + passed)


class Bottleneck(Block):
    """The paper's B_k, three convolutions; the last ReLU comes after the sum."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        inputs, inner, outputs, stride = shape
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = Norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = Norm(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = Norm(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    @property
    def last_norm(self) -> Norm:
        """The normalisation before the sum."""
        return self.norm3

    def branch(self, input: Tensor) -> Tensor:
        """What is added to the shortcut."""
        hidden = torch.relu(self.norm1(self.conv1(input)))
        hidden = torch.relu(self.norm2(self.conv2(hidden)))
        return self.norm3(self.conv3(hidden))


class BasicBlock(Block):
    """ResNet-18's block, two convolutions 3×3."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        inputs, inner, outputs, stride = shape
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride=stride, padding=1, bias=False)
        self.norm1 = Norm(inner)
        self.conv2 = nn.Conv2d(inner, outputs, 3, padding=1, bias=False)
        self.norm2 = Norm(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    @property
    def last_norm(self) -> Norm:
        """The normalisation before the sum."""
        return self.norm2

    def branch(self, input: Tensor) -> Tensor:
        """What is added to the shortcut."""
        hidden = torch.relu(self.norm1(self.conv1(input)))
        return self.norm2(self.conv2(hidden))


BLOCKS: dict[str, type[Block]] = {"bottleneck": Bottleneck, "basic": BasicBlock}


def he_(network: nn.Module) -> None:
    """First weights of all convolutions by He."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """What brings a block's input to the shape of its output; None where it has that already."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(Pointwise(inputs, outputs, 1, stride=stride, bias=False), Norm(outputs))
