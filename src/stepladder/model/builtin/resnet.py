"""ResNet: residual convolution blocks, in one flat list through all four stages.

The stride of a stage is on the 3×3 convolution of its first block. The small stem, for images of a
few dozen pixels, is one 3×3 convolution that keeps the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.model.anatomy.anatomy import Anatomy


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResNetBlock(nn.Module):
    """Two 3×3 convolutions; or, in a bottleneck, a 3×3 between two 1×1, four times as wide out."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        widths = (inputs, *[width] * (len(kernels) - 1), outputs)
        self.layers = nn.ModuleList(
            convolution(*row) for row in zip(widths, widths[1:], kernels, strides)
        )
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        hidden = images
        for layer in self.layers[:-1]:
            hidden = F.relu(layer(hidden))
        return F.relu(self.layers[-1](hidden) + self.around(images))


class ResNet(nn.Module):
    def __init__(
        self,
        *,
        depths: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        bottleneck: bool = False,
        small: bool = False,
        channels: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        shrink = [] if small else [nn.MaxPool2d(3, 2, padding=1)]
        stem = convolution(channels, width, *((3, 1) if small else (7, 2)))
        self.stem = nn.Sequential(*stem, nn.ReLU(), *shrink)
        self.blocks = nn.ModuleList(stack(depths, width, bottleneck))
        outputs = width * 2 ** (len(depths) - 1) * (4 if bottleneck else 1)
        self.head = nn.Linear(outputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of (batch, channels, height, width)."""
        hidden = images if self.stem is None else self.stem(images)
        for block in self.blocks:
            hidden = hidden if block is None else block(hidden)
        return hidden if self.head is None else self.head(hidden.mean((-2, -1)))

    @property
    def anatomy(self) -> Anatomy:
        names = tuple(f"blocks.{index}" for index in range(len(self.blocks)))
        return Anatomy(entry=("stem",), blocks=names, exit=("head",), head="head")


def stack(depths: Sequence[int], width: int, bottleneck: bool) -> Iterator[ResNetBlock]:
    """Every stage in turn: each doubles the width and, but for the first, halves the size."""
    inputs = width
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            yield ResNetBlock(inputs, width * 2**stage, stride, bottleneck=bottleneck)
            inputs = width * 2**stage * (4 if bottleneck else 1)
