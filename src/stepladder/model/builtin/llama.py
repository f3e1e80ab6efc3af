"""Llama: rotary positions, RMSNorm, grouped-query attention, a gated MLP, no biases.

Mixtral, OLMoE and Qwen3-MoE are Llamas whose MLPs are mixtures of experts; the latter two have
norms of queries and keys.

All blocks share one rotary table, which each attention refers to, so that a block takes only hidden
states and integers, and no angles that a cast could round.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.workload import Shape

from .attention import ATTENTION_CUTS, Attention, document_mask
from .gated_mlp import GatedMlp
from .initialise import residual_std
from .mixture import BALANCE, Mixture, Z
from .rotary import Rotary

MLP_CUTS = {"mlp.gate": "column", "mlp.up": "column", "mlp.down": "row"}


class LlamaBlock(nn.Module):
    def __init__(self, shape: Shape, rotary: Rotary, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            bias=False,
            rotary=rotary,
            head_width=shape.head_width,
            norms=shape.query_key_norms,
        )
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.mlp = mlp

    def forward(
        self, hidden: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), positions, mask)
        return hidden + self.mlp(self.mlp_norm(hidden))


class Llama(nn.Module):
    """Args: those of a mixture of experts mean nothing without experts.

    theta: the base of the rotary angles.
    balance, z_loss, capacity: see Mixture.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        theta: float = 500_000.0,
        balance: float = BALANCE,
        z_loss: float = Z,
        capacity: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        rotary = Rotary(shape.head_width, shape.sequence, theta=theta)
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)

        def mlp(layer: int) -> nn.Module:
            if not shape.is_sparse(layer):
                return GatedMlp(shape.hidden, shape.ffn)
            return Mixture(shape, balance=balance, z_loss=z_loss, capacity=capacity)

        self.blocks = nn.ModuleList(
            LlamaBlock(shape, rotary, mlp(layer)) for layer in range(shape.layers)
        )
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
    def cuts(self) -> dict[str, str]:
        """None of MLPs where some are mixtures; none of heads whose norm is over all of them."""
        cuts = {} if self.shape.query_key_norms else dict(ATTENTION_CUTS)
        return cuts if self.shape.experts else {**cuts, **MLP_CUTS}

    @property
    def anatomy(self) -> Anatomy:
        return Anatomy(
            entry=("embedding",),
            blocks=tuple(f"blocks.{index}" for index in range(self.shape.layers)),
            exit=("norm", "head"),
            cuts=self.cuts,
            head="head",
            embedding="embedding",
            tied=self.shape.tied,
        )
