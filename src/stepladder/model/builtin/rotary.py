"""Rotary positions: each pair of a head's numbers is rotated by an angle that grows with position.

The pairs are (i, i + width/2), the layout of the published Llama weights on Hugging Face. The table
is float32 in any model: bfloat16 has steps of 32 at position 8,000, which is five full rotations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.errors import ModelError
from stepladder.seam.modules import Converted


class Rotary(Converted):
    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, sequence: int, *, theta: float) -> None:
        super().__init__()
        self.head_width, self.sequence, self.theta = head_width, sequence, theta
        empty = torch.empty(sequence, head_width // 2)
        self.register_buffer("cos", empty, persistent=False)
        self.register_buffer("sin", empty.clone(), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the table on its current device."""
        device = self.cos.device
        exponents = torch.arange(0, self.head_width, 2, device=device).float() / self.head_width
        positions = torch.arange(self.sequence, device=device).float()
        angles = torch.outer(positions, self.theta**-exponents)  # (sequence, head width / 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def converted(self) -> None:
        if self.cos.dtype != torch.float32:  # `module.bfloat16()` means the weights, not the angles
            self.reset_buffers()

    def forward(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate (batch, heads, length, width) by its positions: 0, 1, 2 … unless given."""
        cos, sin = self.rows(self.cos, heads, positions), self.rows(self.sin, heads, positions)
        first, second = heads.float().chunk(2, -1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(rotated, -1).type_as(heads)

    def rows(self, table: Tensor, heads: Tensor, positions: Tensor | None) -> Tensor:
        if positions is not None:
            return table[positions].unsqueeze(-3)  # over the heads
        check_length(heads.shape[-2], self.sequence)
        return table[: heads.shape[-2]]


def check_length(length: int, sequence: int) -> None:
    if length > sequence:
        raise ModelError(
            "sequence",
            f"{length} tokens are longer than the {sequence} positions this model was built with",
            f"Build it with sequence={length}.",
        )
