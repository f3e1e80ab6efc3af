"""FLOPs of a shape in closed form, forward, per token.

    matrix      2 for every parameter of a matrix a token meets (Kaplan et al. 2020, 2.1); of
                experts it meets those it goes to
    attention   4 · hidden per key a token looks at, per layer: a score, and its share of a value

A causal token looks at half the sequence on average, and half is what is counted, as people do who
report model FLOPs (Chowdhery et al. 2022, appendix B, halved). Embedding look-ups, norms, biases
and activations are not matrix work and are left out. Backward costs twice the forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shape import Shape


@dataclass(frozen=True, slots=True)
class TokenFlops:
    matrix: int  # forward, per token
    attention: int  # forward, per token, at the sequence asked for

    @property
    def forward(self) -> int:
        return self.matrix + self.attention

    @property
    def training(self) -> int:
        """Forward and backward, per token."""
        return 3 * self.forward


def shape_flops(shape: Shape, sequence: int) -> TokenFlops:
    """What one token of a sequence this long costs."""
    projections = 2 * shape.hidden * (shape.query_width + shape.kv_heads * shape.head_width)
    mlp = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    idle = (shape.experts - shape.active) * shape.expert_parameters
    more = shape.sparse_layers * (shape.mixture_parameters - idle - mlp)
    head = shape.hidden * shape.vocab
    matrix = 2 * (shape.layers * (projections + mlp) + more + head)
    return TokenFlops(matrix, attention=shape.layers * 4 * shape.query_width * sequence // 2)
