"""The modules and plans whose memory is counted on 2, 4 and 8 ranks, and rehearsed by one process.

Every rung and the combinations people use, for a decoder, a net of convolutions and a mixture of
experts; each batch has 16 rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import stepladder as sl

ROWS, LENGTH, VOCABULARY = 16, 32, 512
Case = tuple[nn.Module, Any, str]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, width: int = 128, depth: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, 8) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Pictures(nn.Module):
    def __init__(self, channels: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.stem(pictures)
        for part in self.body:
            x = x + part(x)
        return self.head(x.mean((2, 3)))


def decoder() -> Case:
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    return Decoder(), (ids, ids), "cross_entropy"


def pictures() -> Case:
    batch = torch.randn(ROWS, 3, 16, 16), torch.randint(0, 10, (ROWS,))
    return Pictures(), batch, "cross_entropy"


def gpt() -> Case:
    """Built in, for the axes that cut a model: one's own says in an anatomy where it is cut."""
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    name = f"gpt:layers=8,hidden=128,heads=8,vocab={VOCABULARY}"
    return sl.build(name, sequence=LENGTH), (ids, ids), "cross_entropy"


def mixture() -> Case:
    name = "llama:layers=4,hidden=64,heads=8,kv_heads=8,vocab=512,ffn=128,experts=8,active=2"
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    return sl.build(name, sequence=LENGTH), (ids, ids), "cross_entropy"


MODELS = {make.__name__: make for make in (decoder, pictures, gpt, mixture)}

SHARDED = ("ddp", "zero1", "zero2", "zero3")
PLANS = {
    2: (
        *SHARDED, "bf16 ddp", "bf16 zero3 recompute=blocks", "bf16-master zero2", "zero3 micro=4",
    ),
    4: (*SHARDED, "hsdp shard=2", "bf16 hsdp shard=2 recompute=blocks"),
    8: (*SHARDED, "hsdp shard=4", "bf16 zero3"),
}  # fmt: skip
CUT = {
    2: ("tensor=2", "pipeline=2 micro=4", "context=2"),
    4: (
        "tensor=4", "pipeline=4 micro=4", "context=4", "ddp tensor=2", "zero3 shard=2 tensor=2",
        "zero3 shard=2 context=2", "zero1 shard=2 pipeline=2 micro=4",
        "pipeline=2 tensor=2 micro=4", "context=2 tensor=2",
    ),
    8: (
        "tensor=8", "pipeline=8 micro=2", "context=8", "hsdp shard=2 replicate=2 tensor=2",
        "zero3 shard=4 tensor=2", "zero3 shard=2 pipeline=2 tensor=2 micro=4",
        "zero3 shard=2 context=2 tensor=2",
    ),
}  # fmt: skip
OF_PICTURES = {2: SHARDED, 4: ("ddp", "zero3", "hsdp shard=2"), 8: ("zero3",)}
OF_EXPERTS = {
    2: ("experts=2", "zero3"), 4: ("experts=4", "zero3 experts=2"),
    8: ("experts=8", "hsdp shard=2 replicate=4 experts=2"),
}  # fmt: skip
EVERY = [
    (model, ranks, plan)
    for ranks in PLANS
    for model, plans in (
        ("gpt", CUT), ("mixture", OF_EXPERTS), ("decoder", PLANS), ("pictures", OF_PICTURES),
    )
    for of_ranks in (plans[ranks],)
    for plan in of_ranks
]  # fmt: skip


def make(model: str) -> Case:
    torch.manual_seed(0)
    return MODELS[model]()
