"""The first convolution of a net, computed over images folded 2 × 2 (space to depth).

Matrix units read eight channels at a time, and an image has three: cuDNN pads them with zeros and
multiplies those. A convolution of stride 2 is also one of stride 1, with half the taps along each
side, over images in which every 2 × 2 pixels became the channels of one: twelve of sixteen channels
are then not zero. Along one side, with k taps and padding p,

    out[i] = sum over u of w[u] · x[2i + u - p]
           = sum over a, b of w'[2a + b] · x'[2(i + a) + b]

where x' has p zeros before x, and w' one zero tap after w where k is odd. The same products are
summed, and zeros. Parameters stay as they are: each pass folds the weight, a few thousand numbers,
and unfolds its gradient.

On an H200 the first convolution of ResNet-50 (256 images of 224 × 224) took 2.8 of 37.8 ms a step
in cuDNN's own kernels; reading and writing its bytes takes 0.12 ms.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.seam.modules import convolve_by, convolves_plainly

MOST_CHANNELS = 4  # with eight or more, the matrix units are filled without folding
CHANNELS_AT_ONCE = 8  # read by the fast kernels
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def fold_first_convolutions(module: nn.Module, device_type: str = "cuda") -> list[str]:
    """Make convolutions over images of few channels run folded; return their names."""
    folded = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d) and folds(part):
            padding = cast(tuple[int, int], part.padding)
            # Without the module in it: copies of a module then run with their own weights.
            convolve_by(part, partial(convolve, padding=padding, device_type=device_type))
            folded.append(name)
    return folded


def folds(conv: nn.Conv2d) -> bool:
    """Whether a convolution is of stride 2 over few channels, and computes what torch's does."""
    plain = type(conv).forward is nn.Conv2d.forward
    return (
        plain
        and convolves_plainly(conv)
        and conv.in_channels <= MOST_CHANNELS
        and conv.groups == 1
        and conv.stride == (2, 2)
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and min(conv.kernel_size) >= 3
    )


def convolve(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    padding: tuple[int, int],
    device_type: str,
) -> Tensor:
    """Convolve with stride 2: folded where that is faster, else as torch does."""
    work = sixteen_bit_type(images, weight)
    # Images that require a gradient were computed: this is not the first convolution.
    first = images.dim() == 4 and not images.requires_grad and images.device.type == device_type
    if work is None or not first:
        return functional.conv2d(images, weight, bias, 2, padding)
    # Cast before it is folded: autocast would cast after, and fold twice the bytes.
    return convolve_folded(images.to(work), weight, bias, padding)


def sixteen_bit_type(images: Tensor, weight: Tensor) -> torch.dtype | None:
    """The 16-bit type a convolution of these computes in; None for a wider one."""
    kind = images.device.type
    if torch.float64 in (images.dtype, weight.dtype):
        return None
    if torch.is_autocast_enabled(kind):
        work = torch.get_autocast_dtype(kind)
    elif images.dtype == weight.dtype:
        work = weight.dtype
    else:
        return None  # torch's own convolution says what is wrong
    return work if work in SIXTEEN_BITS else None


def convolve_folded(
    images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor:
    """A convolution of stride 2 as one of stride 1 over images folded 2 × 2."""
    (height, width), (tall, wide), (top, left) = images.shape[2:], weight.shape[2:], padding
    around = left, end_padding(width, wide, left), top, end_padding(height, tall, top)
    taps = functional.pad(weight, (0, wide % 2, 0, tall % 2))
    return functional.conv2d(fold(functional.pad(images, around)), fold(taps), bias)


def end_padding(size: int, taps: int, padding: int) -> int:
    """Zeros to add after one side of the images; negative where its last pixels are not read."""
    outputs = (size + 2 * padding - taps) // 2 + 1
    return 2 * (outputs - 1) + taps + taps % 2 - padding - size


def fold(images: Tensor) -> Tensor:
    """Every 2 × 2 pixels as the channels of one, padded to a multiple of eight, channels-last."""
    count, channels, height, width = images.shape
    pairs = images.reshape(count, channels, height // 2, 2, width // 2, 2)
    deep = pairs.permute(0, 3, 5, 1, 2, 4).reshape(count, 4 * channels, height // 2, width // 2)
    filled = functional.pad(deep, (0, 0, 0, 0, 0, -4 * channels % CHANNELS_AT_ONCE))
    return filled.contiguous(memory_format=torch.channels_last)
