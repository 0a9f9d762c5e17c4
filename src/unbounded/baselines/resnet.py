"""ResNet-18 (He et al., 2016) in its form for small images."""

from torch import nn

from unbounded.baselines.whole import Whole
from unbounded.layers.convolutional import BasicBlock, LayerShape, Stem, he_


class ResNet18(Whole):
    """A stem 3×3 without pooling, then four stages of two basic blocks, strides 1, 2, 2, 2.

    The form that is used for CIFAR-10: 11.2 million weights with the default width.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        width: channels of the stem; each stage but the first doubles them.
        blocks: how many in each stage.
    """

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        *,
        width: int = 64,
        blocks: tuple[int, ...] = (2, 2, 2, 2),
    ):
        super().__init__(in_channels, out_features)
        self.width, self.blocks = width, blocks

    @property
    def num_features(self) -> int:
        """Channels of the last stage."""
        return self.width << (len(self.blocks) - 1)

    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features, height/8, width/8)`."""
        layers: list[nn.Module] = [Stem(self.in_channels, self.width)]
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            outputs = self.width << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(BasicBlock(LayerShape(inputs, outputs, outputs, stride)))
                inputs = outputs
        network = nn.Sequential(*layers)
        he_(network)
        return network
