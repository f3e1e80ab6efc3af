"""A multilayer perceptron: the smallest model with an entry, blocks and an exit."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.model.anatomy.anatomy import Anatomy


class MLPBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(F.relu(self.up(hidden)))


class MLP(nn.Module):
    def __init__(
        self, *, inputs: int = 64, width: int = 64, layers: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(MLPBlock(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of (batch, …); all further dimensions are flattened."""
        hidden = inputs if self.embed is None else F.relu(self.embed(inputs.flatten(1)))
        for block in self.blocks:
            hidden = hidden if block is None else block(hidden)
        return hidden if self.head is None else self.head(hidden)

    @property
    def anatomy(self) -> Anatomy:
        return Anatomy(
            entry=("embed",),
            blocks=tuple(f"blocks.{index}" for index in range(len(self.blocks))),
            exit=("head",),
            cuts={"up": "column", "down": "row"},
            head="head",
        )
