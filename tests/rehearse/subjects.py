"""Small modules as other people write them, each with a batch and a loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class Decoder(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, vocab: int = 199, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class UNet(nn.Module):
    """Two levels, with a skip connection and group norms."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, channels, 3, padding=1)
        self.deeper = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.out = nn.Conv2d(2 * channels, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = F.silu(self.down(image))
        below = F.silu(self.norm(self.deeper(first)))
        return self.out(torch.cat([first, self.up(below)], 1))


class Residual(nn.Module):
    """A classifier of images with batch norm and pooling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, bias=False, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
            for _ in range(3)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(image), 2)
        for part in self.body:
            x = F.relu(x + part(x), inplace=True)
        return self.head(x.mean((2, 3)))


def pixels(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets)


def make(name: str):
    """A module, a batch of eight rows, and its loss."""
    torch.manual_seed(0)
    if name == "decoder":
        ids = torch.randint(0, 199, (8, 24))
        return Decoder(), (ids, ids), "cross_entropy"
    images = torch.randn(8, 3, 16, 16)
    if name == "unet":
        return UNet(), (images, torch.randint(0, 5, (8, 16, 16))), pixels
    return Residual(), (images, torch.randint(0, 10, (8,))), "cross_entropy"
