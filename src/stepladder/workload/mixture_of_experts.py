"""The facts of a block whose MLP is a mixture of experts.

Per token, with d the width, e the width inside an expert, a the experts that a token goes to, in
elements; the attention's part, and that of an MLP beside the experts, is as in any block:

    permuted   eager, compiled     a·d         a token's row is copied to each of its experts
    inside     eager               4·a·e       gate, up, silu(gate), their product
               compiled            3·a·e       silu is made again
               selective           2·a·e       what the first product gave
    given      all                 a·d         experts' answers, before they are weighted and added

The router is one more product; its choice, indices and fp32 weights, is kept by eager alone. Rows
are sorted by expert and all experts of a layer multiplied in one kernel. Autocast does not know
that kernel, so what it reads and gives has the stream's type.
"""

from __future__ import annotations

from dataclasses import replace

from .facts import ElementsByType, Launches, MatmulFacts, MemoryTraffic, Part
from .shape import Shape

INDEX_BYTES = 32  # of each row that is permuted: 64-bit places, there and back, experts, tokens

# Counted on Mixtral's block, and what an MLP beside the experts adds on Qwen2's.
AHEAD, BACK = Launches(61, 69, 21), Launches(95, 110, 28)
BESIDE_AHEAD, BESIDE_BACK = Launches(6, 17, 7), Launches(13, 34, 11)
TENSORS, BESIDE = 9, 3  # of parameters


def with_experts(block: Part, shape: Shape, length: int) -> Part:
    """A block that has attention, and an MLP of `shared_ffn` where there is one, with experts."""
    shared = bool(shape.shared_ffn)
    d, rows = length * shape.hidden, length * shape.active
    permuted, inside = 1.0 * rows * shape.hidden, 1.0 * rows * shape.expert_width
    # The router casts its input for itself, as gate and up would; an MLP beside it adds its answer.
    answer = ElementsByType(work=d if shared else 0.0, residual=permuted)
    choice = ElementsByType(
        cast=d if shared else -d,
        single=length * (shape.experts + 2 * shape.active + 1),
        other_bytes=INDEX_BYTES * rows,
    )
    weighted = 3 * permuted >= 2 * inside  # what backward has most of at once

    return replace(
        block,
        name="block with experts",
        parameters=block.parameters - shared_mlp_parameters(shape) + shape.mixture_parameters,
        whole_parameters=block.whole_parameters
        - shared_mlp_parameters(shape)
        + shape.mixture_parameters,
        matmuls=(*(m for m in block.matmuls if m.flops), *expert_matmuls(shape, length)),
        moved=expert_traffic(block.moved, d, permuted, inside),
        eager=block.eager + answer + ElementsByType(residual=permuted + 4 * inside) + choice,
        compiled=block.compiled + answer + ElementsByType(residual=permuted + 3 * inside),
        selective=block.selective + answer + ElementsByType(residual=2 * inside),
        # Gradients of what experts gave, whose weights are fp32, or of what is inside them.
        scratch=block.scratch
        + (
            ElementsByType(single=3 * permuted) if weighted else ElementsByType(residual=2 * inside)
        ),
        launches=sum_launches(AHEAD, BESIDE_AHEAD) if shared else AHEAD,
        launches_back=sum_launches(BACK, BESIDE_BACK) if shared else BACK,
        tensors=TENSORS + (BESIDE if shared else 0),
    )


def shared_mlp_parameters(shape: Shape) -> int:
    """Parameters of the MLP that the block came with."""
    return 3 * shape.hidden * shape.shared_ffn


def expert_matmuls(shape: Shape, length: int) -> tuple[MatmulFacts, ...]:
    """The matmuls of the router and the experts; gate and up are one matmul."""
    width, inside, rows = shape.hidden, shape.expert_width, length * shape.active
    return (
        MatmulFacts(length, width, shape.experts),
        MatmulFacts(rows, width, 2 * inside, experts=shape.experts, narrows=True),
        MatmulFacts(rows, inside, width, experts=shape.experts, narrows=True),
    )


def expert_traffic(moved: MemoryTraffic, d: float, permuted: float, inside: float) -> MemoryTraffic:
    """The block's traffic, plus sorting, gating, weighting and summing the experts."""
    # One by one: rows copied, weighted and copied back 6, added 1 and written d; gated 5. Fused:
    # copied 2, weighted and added on the way back 1, written d; gated 3.
    eager = ElementsByType(residual=7 * permuted + d + 5 * inside)
    compiled = ElementsByType(residual=3 * permuted + d + 3 * inside)
    return replace(moved, eager=moved.eager + eager, compiled=moved.compiled + compiled)


def sum_launches(one: Launches, other: Launches) -> Launches:
    return Launches(one.eager + other.eager, one.mixed + other.mixed, one.compiled + other.compiled)
