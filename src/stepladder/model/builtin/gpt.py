"""GPT-2: learned positions, pre-LayerNorm, GELU, biases, tied embedding and head.

Dropout applies to the embedding and to the residual branches, not to attention weights, so that
attention stays one replaceable call.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.workload import Shape

from .attention import ATTENTION_CUTS, Attention, document_mask
from .initialise import residual_std
from .rotary import check_length


class Mlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width)
        self.down = nn.Linear(width, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(hidden), approximate="tanh"))


class GPTBlock(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape.hidden, shape.heads, shape.kv_heads, bias=True)
        self.mlp_norm = nn.LayerNorm(shape.hidden)
        self.mlp = Mlp(shape.hidden, shape.ffn)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), mask=mask))
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))


class GPT(nn.Module):
    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.position = nn.Embedding(shape.sequence, shape.hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GPTBlock(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.mask = document_mask  # replaceable like attend, for context parallelism
        self.tie()

    def forward(
        self, tokens: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Logits of (batch, length) tokens; a pipeline stage takes and returns hidden states."""
        hidden = self.enter(tokens, positions) if self.embedding is not None else tokens
        mask = None if documents is None else self.mask(documents)
        for block in self.blocks:
            hidden = hidden if block is None else block(hidden, mask=mask)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.head is None else self.head(hidden)

    def enter(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        if positions is None:
            check_length(tokens.shape[-1], self.shape.sequence)
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.dropout(self.embedding(tokens) + self.position(positions))

    def tie(self) -> None:
        """Tie head and embedding, if the shape says so and both are on this stage."""
        if self.shape.tied and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def initial(self, name: str) -> float | None:
        return residual_std(name, self.shape.layers)

    @property
    def anatomy(self) -> Anatomy:
        return Anatomy(
            entry=("embedding", "position", "dropout"),
            blocks=tuple(f"blocks.{index}" for index in range(self.shape.layers)),
            exit=("norm", "head"),
            cuts={**ATTENTION_CUTS, "mlp.up": "column", "mlp.down": "row"},
            head="head",
            embedding="embedding",
            tied=self.shape.tied,
        )
