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

from .facts import Kept, Launches, Matrix, Moved, Part
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
    answer = Kept(work=d if shared else 0.0, residual=permuted)
    choice = Kept(
        cast=d if shared else -d,
        single=length * (shape.experts + 2 * shape.active + 1),
        other_bytes=INDEX_BYTES * rows,
    )
    weighted = 3 * permuted >= 2 * inside  # what backward has most of at once

    return replace(
        block,
        name="block with experts",
        parameters=block.parameters - shape_mlp(shape) + shape.mixture_parameters,
        whole_parameters=block.whole_parameters - shape_mlp(shape) + shape.mixture_parameters,
        matrices=(*(m for m in block.matrices if m.flops), *products_of(shape, length)),
        moved=moved_by(block.moved, d, permuted, inside),
        eager=block.eager + answer + Kept(residual=permuted + 4 * inside) + choice,
        compiled=block.compiled + answer + Kept(residual=permuted + 3 * inside),
        selective=block.selective + answer + Kept(residual=2 * inside),
        # Gradients of what experts gave, whose weights are fp32, or of what is inside them.
        scratch=block.scratch
        + (Kept(single=3 * permuted) if weighted else Kept(residual=2 * inside)),
        launches=added(AHEAD, BESIDE_AHEAD) if shared else AHEAD,
        launches_back=added(BACK, BESIDE_BACK) if shared else BACK,
        tensors=TENSORS + (BESIDE if shared else 0),
    )


def shape_mlp(shape: Shape) -> int:
    """Parameters of the MLP that the block came with."""
    return 3 * shape.hidden * shape.shared_ffn


def products_of(shape: Shape, length: int) -> tuple[Matrix, ...]:
    """The router, and the experts' two: gate and up are beside each other in one."""
    width, inside, rows = shape.hidden, shape.expert_width, length * shape.active
    return (
        Matrix(length, width, shape.experts),
        Matrix(rows, width, 2 * inside, experts=shape.experts),
        Matrix(rows, inside, width, experts=shape.experts),
    )


def moved_by(moved: Moved, d: float, permuted: float, inside: float) -> Moved:
    """With what sorting, gating, weighting and adding up move."""
    # One by one: rows copied, weighted and copied back 6, added 1 and written d; gated 5. Fused:
    # copied 2, weighted and added on the way back 1, written d; gated 3.
    eager = Kept(residual=7 * permuted + d + 5 * inside)
    compiled = Kept(residual=3 * permuted + d + 3 * inside)
    return replace(moved, eager=moved.eager + eager, compiled=moved.compiled + compiled)


def added(one: Launches, other: Launches) -> Launches:
    return Launches(one.eager + other.eager, one.mixed + other.mixed, one.compiled + other.compiled)
