"""What a block keeps of one micro-batch for its backward pass, in bytes of one rank."""

from __future__ import annotations

from stepladder.plan import LARGE_BLOCK, Recompute
from stepladder.workload import Part

from .depths import Depths, depths_of
from .sizes import Sizes, per_rank

PLAIN_SCORE_BYTES = 4  # softmax in fp32, kept beside the weights in the work type


def block_depths(part: Part, recompute: Recompute, num_blocks: int, sizes: Sizes) -> Depths:
    """How deep such blocks are recomputed under the plan's rule."""
    full, cheap = kept_bytes(part, sizes), cheap_bytes(part, sizes)
    return depths_of(recompute, num_blocks, full, cheap, stream_bytes(part, sizes))


def mean_bytes(part: Part, depths: Depths, sizes: Sizes) -> float:
    """What a block keeps, on average over their depths."""
    full, cheap = kept_bytes(part, sizes), cheap_bytes(part, sizes)
    return depths.mean_bytes(full, cheap, stream_bytes(part, sizes))


def rebuilt_bytes(part: Part, depths: Depths, sizes: Sizes) -> float:
    """What stands in full while the backward of a recomputed block works."""
    return 0.0 if depths.kept == 1.0 else kept_bytes(part, sizes)


def cheap_bytes(part: Part, sizes: Sizes) -> float:
    """What a selective block keeps: its input, and the products it does not repeat."""
    cheap, stream = kept_bytes(part, sizes, selective=True), stream_bytes(part, sizes)
    return stream + (1 - sizes.software.products_again) * (cheap - stream)


def stream_bytes(part: Part, sizes: Sizes) -> float:
    """What a block that keeps nothing else keeps: what flowed in."""
    if part.input is None:
        return part.output * per_rank(sizes) * sizes.residual
    return part.input.num_bytes(sizes.work, sizes.residual) * per_rank(sizes)


def kept_bytes(part: Part, sizes: Sizes, *, selective: bool = False) -> float:
    kept = part.compiled if sizes.compiled else part.eager
    if selective:
        kept = part.selective
    scale = per_rank(sizes)
    size = kept.num_bytes(sizes.work, sizes.residual) * scale
    if sizes.whole and not selective and part.parameters < LARGE_BLOCK:
        # A compiler that sees no end of a block keeps what its norm gave the products: exactly one
        # such tensor a block is what GPT-2 held more whole than by block.
        size += part.output * scale * sizes.work
    if sizes.tensor > 1 and not selective and not sizes.software.regathers:
        # Each cut pair of products reads, and keeps, the stream gathered from all ranks.
        pairs = sum(matrix.cut == "inner" for matrix in part.matrices)
        size += pairs * part.output * scale * (sizes.tensor - 1) * sizes.work
    if not sizes.flash and part.attention and not selective:
        size += part.attention.scores * scale * (PLAIN_SCORE_BYTES + sizes.work)
    return size
