"""Convolutions, as cuDNN ran them on an H200 for images in torch's default layout.

16-bit kernels want channels-last images: input, output and weight are copied, with channels padded.
Single pixels are matrix products, and their weight's gradient is one partial sum an image. In
float32 without TF32, 3 x 3 windows go back by Winograd's 4 x 4 tiles, which are 6 x 6 after the
transformation; small images with many channels go through Fourier transforms, of the weight too,
which is what takes most. Which way cuDNN takes for a shape is its own; where it could be either,
the larger is counted.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any, NamedTuple

from torch import Tensor

FLOAT, COMPLEX = 4, 8  # bytes
CHANNELS, GROUP_CHANNELS, PLACES = 8, 32, 8  # of which 16-bit kernels take multiples
SPLIT, SPLIT_MOST = 13, 16 * 2**20  # partial sums of a weight's gradient, and all of them
BY_IMAGE_MOST = 32 * 2**20  # up to which there is one for each image of an odd size
SMALL_PLACES = 256  # up to which a float32 matrix product over pixels copies its images
TILE, TRANSFORMED = 4, 6  # pixels along a side of Winograd's tiles
FOURIER_SIDE, FOURIER_LEAST, FOURIER_CHANNELS, FOURIER_TILE = 32, 16, 128, 30


class Shape(NamedTuple):
    """A convolution's tensors: what it reads, its weight, what it writes."""

    images: Tensor
    weight: Tensor
    made: Tensor
    stride: tuple[int, ...]
    transposed: bool
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weight.shape[2:])

    @property
    def plain(self) -> bool:
        """A stride of one."""
        return set(self.stride) == {1} and not self.transposed

    @property
    def pixelwise(self) -> bool:
        return set(self.kernel) == {1} and self.plain

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.weight.shape[1] == 1

    @property
    def windows(self) -> bool:
        """Of three by three, one after the other."""
        return self.kernel == (3, 3) and self.plain and self.groups == 1

    @property
    def places(self) -> int:
        return prod(self.images.shape[2:])

    @property
    def even(self) -> bool:
        return self.places % PLACES == 0

    @property
    def narrow(self) -> bool:
        return self.images.element_size() == 2

    @property
    def both(self) -> int:
        return num_bytes(self.images) + num_bytes(self.made)


def convolution_bytes(args: Any, result: Any) -> int:
    shape = Shape(args[0], args[1], result, tuple(args[3]), args[6], args[8])
    if shape.depthwise:
        return 0
    if shape.narrow:
        return 0 if shape.pixelwise and shape.even else layout_copies(shape)
    if shape.windows and goes_by_fourier(shape):
        return by_fourier(shape)
    return shape.both + num_bytes(shape.weight) if shape.groups > 1 else 0


def convolution_backward_bytes(args: Any, result: Any) -> int:
    gradient, images, weight = args[:3]
    shape = Shape(images, weight, gradient, tuple(args[4]), args[7], args[9])
    copied = 0 if gradient.is_contiguous() or channels_last(images) else num_bytes(gradient)
    if shape.depthwise:
        return copied
    way = narrow_backward if shape.narrow else wide_backward
    return copied + way(shape, for_images=args[10][0])


def narrow_backward(shape: Shape, *, for_images: bool) -> int:
    partial = shape.weight.numel() * FLOAT
    by_image = partial * shape.images.shape[0]
    if shape.pixelwise and shape.even and len(shape.kernel) < 3:
        return by_image
    copied = layout_copies(shape) + min(SPLIT * partial, SPLIT_MOST)
    return max(copied, by_image) if shape.pixelwise and by_image <= BY_IMAGE_MOST else copied


def wide_backward(shape: Shape, *, for_images: bool) -> int:
    if shape.windows:
        if not for_images:
            return 0
        return max(by_winograd(shape), by_tiles(shape) if goes_by_fourier(shape) else 0)
    if shape.pixelwise:
        return 0 if shape.even and shape.places > SMALL_PLACES else shape.both
    flat, overlapping = len(shape.kernel) == 2, max(shape.stride) < max(shape.kernel)
    line = len(shape.kernel) == 1 and shape.plain
    if line or (flat and overlapping and shape.groups == 1):
        return 0
    return shape.both + num_bytes(shape.weight)


def layout_copies(shape: Shape) -> int:
    """Input, output and weight with their channels innermost, unless they are stored so."""
    pad = GROUP_CHANNELS if shape.groups > 1 else CHANNELS
    images = 0 if channels_last(shape.images) else padded(shape.images, shape.groups, pad)
    made = 0 if channels_last(shape.images) else padded(shape.made, shape.groups, pad)
    return images + made + (0 if shape.pixelwise else padded(shape.weight, 1, CHANNELS))


def padded(tensor: Tensor, groups: int, multiple: int) -> int:
    channels = tensor.shape[1] // groups
    wide = -(-channels // multiple) * multiple * groups
    return num_bytes(tensor) // max(tensor.shape[1], 1) * wide


def channels_last(tensor: Tensor) -> bool:
    return tensor.dim() > 2 and tensor.stride(1) == 1 and tensor.shape[1] > 1


def by_winograd(shape: Shape) -> int:
    """Tiles come in pairs along each side."""
    tiles = prod(2 * ceil(side / (2 * TILE)) for side in shape.images.shape[2:])
    planes = shape.images.shape[0] * (shape.images.shape[1] + shape.made.shape[1])
    weights = shape.weight.shape[0] * shape.weight.shape[1]
    return FLOAT * TRANSFORMED**2 * (planes * tiles + weights)


def goes_by_fourier(shape: Shape) -> bool:
    read, made = shape.images.shape[1], shape.made.shape[1]
    sides = shape.images.shape[2:]
    fitting = FOURIER_SIDE >= max(sides) >= min(sides) >= FOURIER_LEAST
    return fitting and made >= read >= FOURIER_CHANNELS


def by_fourier(shape: Shape) -> int:
    """Whole images, a power of two with their padding; the weight's in two layouts."""
    side = 2 ** (max(shape.images.shape[2:]) + 1).bit_length()
    planes = shape.images.shape[0] * (shape.images.shape[1] + shape.made.shape[1])
    weights = shape.weight.shape[0] * shape.weight.shape[1]
    return COMPLEX * side * (side // 2 + 1) * (planes + 2 * weights)


def by_tiles(shape: Shape) -> int:
    """Tiles of 32 pixels, which overlap by the window."""
    tiles = prod(ceil(side / FOURIER_TILE) for side in shape.images.shape[2:])
    planes = shape.images.shape[0] * (shape.images.shape[1] + shape.made.shape[1])
    weights = shape.weight.shape[0] * shape.weight.shape[1]
    return COMPLEX * FOURIER_SIDE * (FOURIER_SIDE // 2 + 1) * (planes * tiles + weights)


def num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
