"""Images as bytes on the device: cropped, flipped and normalised there, a whole epoch at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded.steps.batches import Batch, as_tensor

if TYPE_CHECKING:
    from unbounded.model import UDN

# Augmented bytes at a time: a few launches for many batches, and never much memory.
_CHUNK_BYTES = 1 << 28
ALTERNATING = "alternating"


@dataclass(frozen=True)
class Augment:
    """What happens to a training image, another draw every epoch.

    Attributes:
        crop: shift by up to this many pixels in each direction.
        flip: mirror every second image, left and right; "alternating" mirrors those of one half in
            even epochs and the others in odd ones, so that each is seen both ways in two epochs.
        cutout: grey out a square of this size at a random place.
        pad: what a shift uncovers: "reflect" the image or "zero" (the mean colour).
    """

    crop: int = 4
    flip: bool | str = True
    cutout: int = 0
    pad: str = "reflect"

    def __post_init__(self) -> None:
        if self.crop < 0 or self.cutout < 0:
            raise ValueError(f"crop and cutout must be at least 0, got {self.crop}, {self.cutout}")
        if self.pad not in ("reflect", "zero"):
            raise ValueError(f"pad must be 'reflect' or 'zero', got {self.pad!r}")
        if isinstance(self.flip, str) and self.flip != ALTERNATING:
            raise ValueError(f"flip must be True, False or {ALTERNATING!r}, got {self.flip!r}")


class ImageData:
    """Labelled images for `fit`, in place of x and y.

    Args:
        x: bytes, `(rows, height, width, channel)`.
        y: labels, `(rows,)`.
        mean: of each channel, of values between 0 and 1; measured on `x` by default.
        std: likewise. Pass the training set's on to a validation or test set: `like`.
        augment: what to do with the images; nothing by default.

    Example:
        >>> train = ImageData(x, y, augment=Augment(crop=4, flip=True))
        >>> fit(model, train, validation=train.like(x_val, y_val))
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augment: Augment | None = None,
    ):
        self.x, self.y = as_tensor(x, "images"), as_tensor(y, "labels")
        if self.x.dtype != torch.uint8 or self.x.dim() != 4:
            raise ValueError(
                "images must be bytes of shape (rows, height, width, channel), got "
                f"{self.x.dtype} {tuple(self.x.shape)}"
            )
        if self.y.shape[:1] != self.x.shape[:1]:
            raise ValueError(f"there are {len(self.x)} images and {len(self.y)} labels")
        if len(self.x) == 0:
            raise ValueError("there are no images")
        if mean is None or std is None:
            found = _statistics(self.x)
            mean = found[0] if mean is None else mean
            std = found[1] if std is None else std
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.x.shape[3]:
                raise ValueError(
                    f"{name} must have a number for each of the {self.x.shape[3]} channels, "
                    f"got {len(values)}"
                )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"std must be positive, got {self.std}")
        self.augment = augment

    def __len__(self) -> int:
        return self.x.shape[0]

    def like(self, x: Any, y: Any) -> "ImageData":
        """Other images normalised as these are, without augmentation: to validate, to test."""
        return ImageData(x, y, mean=self.mean, std=self.std)

    def inputs(self, rows: slice = slice(None)) -> Tensor:
        """Normalised images as a model takes them: `(rows, channel, height, width)`, float."""
        return normalise(self.x[rows], *constants(self, torch.device("cpu"), torch.float32))

    def bind(
        self, model: "UDN", batch_size: int, generator: torch.Generator | None
    ) -> "ImageBatches":
        """Batches on the model's device."""
        return ImageBatches(self, model, batch_size, generator)


class ImageBatches:
    """Batches of `ImageData`; the bytes are moved to the device once.

    With a generator the images are shuffled and augmented, and an epoch ends with its last full
    batch (every step then has the same shape, and each epoch leaves out other images).
    Without one they come as they are, all of them.
    """

    def __init__(
        self,
        data: ImageData,
        model: "UDN",
        batch_size: int,
        generator: torch.Generator | None,
    ):
        like = model.anchor
        self.device, self.dtype = like.device, like.dtype
        self.images = data.x.to(self.device)
        self.y = model.likelihood.check_targets(data.y).to(self.device)
        self.constants = constants(data, self.device, self.dtype)
        # Grey and zero padding: the byte nearest to the mean, which becomes about zero.
        self.fill = torch.tensor(data.mean).mul(255).round().to(torch.uint8).to(self.device)
        self.augment = data.augment if generator is not None else None
        self.batch_size = batch_size
        self.generator = generator
        self.num_rows = self.num_data = len(data)
        self.epoch = 0
        self.mirrored_first: Tensor | None = None  # (rows,), in even epochs
        if self.augment is not None and self.augment.flip == ALTERNATING:
            # Of the seed alone, so that a resumed run has the same.
            assert generator is not None
            own = torch.Generator().manual_seed(generator.initial_seed())
            halves = torch.randint(0, 2, (len(data),), generator=own) == 1
            self.mirrored_first = halves.to(self.device)

    def begin_epoch(self, epoch: int) -> None:
        """Tell the number of the epoch that comes, from 0; else passes are counted."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.generator is not None and self.num_data > self.batch_size:
            return self.num_data // self.batch_size
        return -(-self.num_data // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        count = len(self)
        row_bytes = self.images[0].numel()
        chunk = max(1, _CHUNK_BYTES // (row_bytes * self.batch_size))  # batches
        order = draws = mirrored = None
        if self.mirrored_first is not None:
            mirrored = self.mirrored_first ^ (self.epoch % 2 == 1)
        self.epoch += 1
        if self.generator is not None:
            order = torch.randperm(self.num_data, generator=self.generator)
            if self.augment is not None:
                # A seed from the host's generator: a checkpoint keeps that one, and with it this.
                seed = int(torch.randint(1 << 62, (), generator=self.generator))
                draws = torch.Generator(self.device).manual_seed(seed)
        for start in range(0, count, chunk):
            stop = min(count, start + chunk)
            rows = slice(start * self.batch_size, stop * self.batch_size)
            if order is None:
                images, y = self.images[rows], self.y[rows]
            else:
                chosen = order[rows].to(self.device)
                images, y = self.images[chosen], self.y[chosen]
            if self.augment is not None and draws is not None:
                turned = None if mirrored is None else mirrored[chosen]
                images = augmented(images, self.augment, draws, self.fill, turned)
            for piece, labels in zip(
                images.split(self.batch_size), y.split(self.batch_size), strict=True
            ):
                yield Batch(normalise(piece, *self.constants), labels, None)

    def head(self, rows: int) -> Batch:
        """The first images, unshuffled: to try the layers on."""
        return Batch(normalise(self.images[:rows], *self.constants), self.y[:rows], None)


def constants(data: ImageData, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale and shift of the bytes of each channel, `(channel,)`."""
    std, mean = (torch.tensor(v, dtype=torch.float64) for v in (data.std, data.mean))
    return (1 / (255 * std)).to(device, dtype), (-mean / std).to(device, dtype)


def normalise(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Bytes `(rows, height, width, channel)` → `(rows, channel, height, width)`, channels last."""
    return torch.addcmul(shift, images.to(scale.dtype), scale).permute(0, 3, 1, 2)


def augmented(
    images: Tensor,
    augment: Augment,
    generator: torch.Generator,
    fill: Tensor,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Shifted, mirrored, cut: one gather for all images, each with draws of its own.

    Args:
        images: bytes, `(rows, height, width, channel)`.
        augment: what to do.
        generator: on the images' device.
        fill: the colour of what is cut or uncovered, `(channel,)`.
        mirrored: which images are mirrored, `(rows,)`; drawn by default.
    """
    rows, height, width, _ = images.shape
    device = images.device

    def integers(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (rows, 1), generator=generator, device=device)

    down = torch.arange(height, device=device).expand(rows, -1)
    across = torch.arange(width, device=device).expand(rows, -1)
    blank: Tensor | None = None
    if augment.flip:
        turned = integers(0, 2) == 1 if mirrored is None else mirrored[:, None]
        across = torch.where(turned, width - 1 - across, across)
    if augment.crop:
        down = down + integers(-augment.crop, augment.crop + 1)
        across = across + integers(-augment.crop, augment.crop + 1)
        if augment.pad == "zero":
            off_down, off_across = _outside(down, height), _outside(across, width)
            blank = off_down[:, :, None] | off_across[:, None, :]
        down, across = _reflected(down, height), _reflected(across, width)
    each = torch.arange(rows, device=device)[:, None, None]
    found = images[each, down[:, :, None], across[:, None, :]]
    if augment.cutout:
        top = integers(0, height) - augment.cutout // 2
        left = integers(0, width) - augment.cutout // 2
        line, column = torch.arange(height, device=device), torch.arange(width, device=device)
        cut = ((line >= top) & (line < top + augment.cutout))[:, :, None] & (
            (column >= left) & (column < left + augment.cutout)
        )[:, None, :]
        blank = cut if blank is None else blank | cut
    return found if blank is None else torch.where(blank[..., None], fill, found)


def _outside(index: Tensor, size: int) -> Tensor:
    return (index < 0) | (index >= size)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Indices beyond an edge, mirrored at the edge's pixel."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index).clamp_(0, size - 1)


def _statistics(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, from counts of bytes: exact and small."""
    means, stds = [], []
    values = torch.arange(256, dtype=torch.float64) / 255
    for channel in range(x.shape[3]):
        share = torch.bincount(x[..., channel].reshape(-1), minlength=256).double()
        share /= share.sum()
        mean = float(share @ values)
        means.append(mean)
        stds.append(max(float(share @ (values - mean).square()) ** 0.5, 1e-3))
    return means, stds
