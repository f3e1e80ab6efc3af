"""Probes for image models: convolutions, batch and group norms, pooling.

Images are stored as torch stores them, row by row of each channel. Those of three colours want no
gradient, and fill few of the lanes that matrix units have, so they are timed apart.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .probe import Probe, Shapes, Work, backward_of, draw

CONVOLUTIONS: Shapes = {  # samples, channels, pixels on a side, channels out, window, stride
    "cuda": (
        (128, 64, 56, 64, 3, 1), (128, 256, 56, 64, 1, 1), (128, 64, 56, 256, 1, 1),
        (128, 512, 28, 128, 1, 1), (128, 128, 28, 128, 3, 1), (128, 256, 14, 256, 3, 1),
        (128, 1024, 14, 256, 1, 1), (128, 256, 56, 128, 3, 2), (128, 512, 7, 2048, 1, 1),
    ),
    "cpu": ((4, 32, 28, 32, 3, 1), (4, 128, 28, 32, 1, 1), (4, 64, 14, 64, 3, 1)),
}  # fmt: skip
COLOURS: Shapes = {  # the same, of images
    "cuda": ((128, 3, 224, 64, 7, 2), (64, 3, 224, 256, 5, 2)),
    "cpu": ((4, 3, 64, 32, 7, 2),),
}
CONVOLVED = {"cuda": ("bf16", "fp16", "tf32", "fp32"), "cpu": ("fp32", "bf16")}
IMAGES: Shapes = {  # samples, channels, pixels on a side: for norms over channels, and pools
    "cuda": ((64, 64, 112), (64, 256, 56), (64, 512, 56)), "cpu": (),
}  # fmt: skip
COLOUR_CHANNELS = 3


def channel_work(probe: Probe, device: torch.device) -> Work:
    x, ones = image(probe, device), torch.ones(probe.shape[1], device=device)
    mean, spread, weight, bias = (ones.clone() for _ in range(4))
    return backward_of(lambda x: functional.batch_norm(x, mean, spread, weight, bias, True), x)


def group_work(probe: Probe, device: torch.device) -> Work:
    return backward_of(lambda x: functional.group_norm(x, 4), image(probe, device))


def pool_work(probe: Probe, device: torch.device) -> Work:
    return backward_of(lambda x: functional.max_pool2d(x, 3, 2, 1), image(probe, device))


def image(probe: Probe, device: torch.device) -> torch.Tensor:
    samples, channels, side = probe.shape
    return draw((samples, channels, side, side), probe, device)


def convolution_work(probe: Probe, device: torch.device) -> Work:
    samples, into, side, out, window, stride = probe.shape
    x = draw((samples, into, side, side), probe, device)
    weight = draw((out, into, window, window), probe, device)
    made = (weight,) if into == COLOUR_CHANNELS else (x, weight)  # images want no gradient

    def convolve(*_: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight, None, stride, window // 2)

    return backward_of(convolve, *made)
