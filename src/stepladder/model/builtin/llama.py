"""Llama: rotary positions, RMSNorm, grouped-query attention, a gated MLP, no biases.

All blocks share one rotary table, which each attention refers to, so that a block takes only hidden
states and integers, and no angles that a cast could round.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.workload import Shape

from .attention import ATTENTION_CUTS, Attention, document_mask
from .initialise import residual_std
from .rotary import Rotary


class GatedMlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class LlamaBlock(nn.Module):
    def __init__(self, shape: Shape, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(
            shape.hidden, shape.heads, shape.kv_heads, bias=False, rotary=rotary
        )
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.mlp = GatedMlp(shape.hidden, shape.ffn)

    def forward(
        self, hidden: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), positions, mask)
        return hidden + self.mlp(self.mlp_norm(hidden))


class Llama(nn.Module):
    def __init__(self, shape: Shape, *, theta: float = 500_000.0) -> None:
        super().__init__()
        self.shape = shape
        rotary = Rotary(shape.head_width, shape.sequence, theta=theta)
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(shape, rotary) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.mask = document_mask  # replaceable like attend, for context parallelism
        self.tie()

    def forward(
        self, tokens: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Logits of (batch, length) tokens; a pipeline stage takes and returns hidden states."""
        hidden = tokens if self.embedding is None else self.embedding(tokens)
        mask = None if documents is None else self.mask(documents)
        for block in self.blocks:
            hidden = hidden if block is None else block(hidden, positions, mask)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.head is None else self.head(hidden)

    def tie(self) -> None:
        """Tie head and embedding, if the shape says so and both are on this stage."""
        if self.shape.tied and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def initial(self, name: str) -> float | None:
        return residual_std(name, self.shape.layers)

    @property
    def anatomy(self) -> Anatomy:
        return Anatomy(
            entry=("embedding",),
            blocks=tuple(f"blocks.{index}" for index in range(self.shape.layers)),
            exit=("norm", "head"),
            cuts={**ATTENTION_CUTS, "mlp.gate": "column", "mlp.up": "column", "mlp.down": "row"},
            head="head",
            embedding="embedding",
            tied=self.shape.tied,
        )
