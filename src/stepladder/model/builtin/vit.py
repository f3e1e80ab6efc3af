"""Vision transformer: an image as a sequence of a class token and patches, not causal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepladder.errors import PlanError
from stepladder.model.anatomy.anatomy import Anatomy

from .attention import ATTENTION_CUTS, Attention
from .gpt import Mlp
from .initialise import residual_std


class ViTBlock(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-6)
        self.attention = Attention(hidden, heads, heads, bias=True, causal=False)
        self.mlp_norm = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = Mlp(hidden, 4 * hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.mlp(self.mlp_norm(hidden))


class Patches(nn.Module):
    """Cuts an image into patches, embeds them, and adds positions and the class token."""

    def __init__(self, image: int, patch: int, channels: int, hidden: int) -> None:
        super().__init__()
        if image % patch:
            sizes = f"{image - image % patch} or {image - image % patch + patch}"
            raise PlanError(
                "model.patch", f"{patch} does not divide image={image}", f"Nearest images: {sizes}."
            )
        self.project = nn.Conv2d(channels, hidden, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.position = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, hidden))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.project(images).flatten(2).transpose(1, 2)  # (batch, patches, hidden)
        return torch.cat((self.token.expand(len(images), -1, -1), patches), 1) + self.position

    def initial(self, name: str) -> float | None:
        return 0.02 if name in ("token", "position") else None


class ViT(nn.Module):
    def __init__(
        self,
        *,
        image: int = 224,
        patch: int = 16,
        hidden: int = 192,
        layers: int = 12,
        heads: int = 3,
        channels: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = Patches(image, patch, channels, hidden)
        self.blocks = nn.ModuleList(ViTBlock(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of (batch, channels, height, width)."""
        hidden = images if self.patches is None else self.patches(images)
        for block in self.blocks:
            hidden = hidden if block is None else block(hidden)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.head is None else self.head(hidden[:, 0])

    def initial(self, name: str) -> float | None:
        return residual_std(name, len(self.blocks))

    @property
    def anatomy(self) -> Anatomy:
        return Anatomy(
            entry=("patches",),
            blocks=tuple(f"blocks.{index}" for index in range(len(self.blocks))),
            exit=("norm", "head"),
            cuts={**ATTENTION_CUTS, "mlp.up": "column", "mlp.down": "row"},
            head="head",
        )
