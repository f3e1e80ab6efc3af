"""Saved activations: bytes that a block keeps of one micro-batch for backward, on one rank."""

from __future__ import annotations

from stepladder.plan import Recompute
from stepladder.plan.shared_constants import LARGE_BLOCK
from stepladder.planner.training_software import OURS
from stepladder.workload import ElementsByType, Part

from .byte_sizes import Sizes, per_rank
from .recompute_depths import RecomputeShares, recompute_shares

PLAIN_SCORE_BYTES = 4  # softmax in fp32, kept beside the weights in the work type


def block_shares(
    part: Part, recompute: Recompute, num_blocks: int, sizes: Sizes
) -> RecomputeShares:
    """How deep such blocks are recomputed under the plan's rule."""
    full, cheap = saved_bytes(part, sizes), selective_bytes(part, sizes)
    return recompute_shares(recompute, num_blocks, full, cheap, input_bytes(part, sizes))


def mean_bytes(part: Part, depths: RecomputeShares, sizes: Sizes) -> float:
    """What a block keeps, on average over their depths."""
    full, cheap = saved_bytes(part, sizes), selective_bytes(part, sizes)
    return depths.mean_bytes(full, cheap, input_bytes(part, sizes))


def recomputed_bytes(part: Part, depths: RecomputeShares, sizes: Sizes) -> float:
    """What stands in full while the backward of a recomputed block works."""
    return 0.0 if depths.kept == 1.0 else saved_bytes(part, sizes)


def selective_bytes(part: Part, sizes: Sizes) -> float:
    """What a selective block keeps: its input, and the products it does not repeat."""
    cheap, stream = saved_bytes(part, sizes, selective=True), input_bytes(part, sizes)
    return stream + (1 - sizes.software.recomputed_matmuls) * (cheap - stream)


def input_bytes(part: Part, sizes: Sizes) -> float:
    """What a block that keeps nothing else keeps: what flowed in."""
    sliced = sizes.software.slices_stream and not part.whole
    scale = per_rank(sizes) * (1 if sliced else sizes.tensor)
    if part.input is None:
        return part.output * scale * sizes.residual
    return part.input.num_bytes(sizes.work, sizes.residual) * scale


def saved_bytes(part: Part, sizes: Sizes, *, selective: bool = False) -> float:
    kept = part.compiled if sizes.compiled else part.eager
    if selective:
        kept = part.selective
    scale = per_rank(sizes) * (sizes.tensor if part.whole else 1)
    size = kept.num_bytes(sizes.work, sizes.residual) * scale
    if sizes.whole and not selective and part.parameters < LARGE_BLOCK:
        # A compiler that sees no end of a block keeps what its norm gave the products: exactly one
        # such tensor a block is what GPT-2 held more whole than by block.
        size += part.output * scale * sizes.work
    if sizes.tensor > 1 and not selective and not part.whole:
        size += whole_stream_bytes(part, kept, sizes)
    keeps_scores = not sizes.flash and not sizes.software.recomputes_scores
    if keeps_scores and part.attention and not selective:
        size += part.attention.scores * scale * score_bytes(sizes)
    if not selective:
        size += composed_bytes(part, sizes)
    return size


def score_bytes(sizes: Sizes) -> int:
    """Of a score of plain attention: its softmax in float32, which in float32 is the weight too."""
    return PLAIN_SCORE_BYTES + (sizes.work if sizes.work < PLAIN_SCORE_BYTES else 0)


def composed_bytes(part: Part, sizes: Sizes) -> float:
    """The weights and repeated keys and values of attention that no kernel of a GPU takes.

    Float32 heads that share keys are attended to by small operations there.
    """
    if not is_composed(part, sizes):
        return 0.0
    seen = part.attention
    assert seen is not None
    repeated = 2 * seen.length * (seen.heads - seen.kv_heads) * seen.head_width
    return (seen.scores + repeated) * sizes.work * per_rank(sizes)


def is_composed(part: Part, sizes: Sizes) -> bool:
    seen = part.attention
    if seen is None or seen.kv_heads == seen.heads or sizes.work < PLAIN_SCORE_BYTES:
        return False
    return sizes.flash and sizes.software is OURS and sizes.settled.on_gpu


def composed_scratch(part: Part, sizes: Sizes) -> float:
    """What its backward makes: the gradients of the weights and of the scores."""
    if not is_composed(part, sizes):
        return 0.0
    assert part.attention is not None
    return 2.0 * part.attention.scores * sizes.work * per_rank(sizes)


def whole_stream_bytes(part: Part, kept: ElementsByType, sizes: Sizes) -> float:
    """What tensor ranks keep of the stream beyond a slice of it each.

    A cut pair of products, or a head cut alone, reads and keeps the stream gathered from all ranks.
    Where the stream is never sliced, what its norms and sums keep is whole as well.
    """
    others = per_rank(sizes) * (sizes.tensor - 1)
    pairs = sum(matrix.cut == "inner" for matrix in part.matmuls)
    size = 0.0
    if not sizes.software.regathers or not sizes.software.slices_stream:
        alone = max((m.rows * m.inner for m in part.matmuls if m.cut == "columns"), default=0)
        size += (pairs * part.output if pairs else alone) * others * sizes.work
    if not sizes.software.slices_stream:
        size += kept.residual * others * sizes.residual
    return size
