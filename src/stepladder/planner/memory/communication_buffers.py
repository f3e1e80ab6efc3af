"""Buffers in which gradients and parameters travel between data-parallel ranks.

DDP's buckets are the gradients themselves (`gradient_as_bucket_view`), so reducing them takes no
memory of its own. Compression works on copies of a bucket, ZeRO 1 gathers updated parameters
through a buffer, and what is reduced block by block is copied into one tensor for each block.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan.precision import BYTES
from stepladder.plan.shared_constants import DDP_BUCKET_BYTES, PARAMETER_BUCKET_BYTES
from stepladder.planner.pipeline_stages import Stage, rank_parameters, trained_parameters
from stepladder.workload import Facts, Part

from .byte_sizes import Sizes

# Matrices beside a bucket while PowerSGD works on one of it: the product of its factors, what that
# misses, and the same without values that are not finite.
POWERSGD_MATRICES = 3


@dataclass(frozen=True, slots=True)
class CommunicationBuffers:
    """Buffers of gradients and gathered parameters: at the loss, beside a block, at the end."""

    head: float = 0.0
    block: float = 0.0
    last: float = 0.0


def communication_buffers(facts: Facts, stage: Stage, sizes: Sizes) -> CommunicationBuffers:
    if sizes.wrapped:
        return sharded_buffers(stage, sizes)
    if sizes.software.bucket_bytes:  # one fills while one travels
        return CommunicationBuffers(*3 * [2 * sizes.software.bucket_bytes])
    if sizes.gradient_ranks == 1:
        return CommunicationBuffers()
    if sizes.settled.slices:
        return CommunicationBuffers(last=exchanged_in_order(facts, stage, sizes))
    if (
        max(sizes.tensor, sizes.experts, sizes.settled.layout.pipeline) > 1
    ):  # FSDP2's machinery, not DDP
        kept, beside = 0.0, reduced_bytes(stage, sizes)
    else:
        kept, beside = compression_bytes(facts, stage, sizes)
    return CommunicationBuffers(
        kept, kept + beside, kept + gathered_after_update(facts, stage, sizes)
    )


def sharded_buffers(stage: Stage, sizes: Sizes) -> CommunicationBuffers:
    """Of ZeRO 2 and 3, which gather and reduce block by block."""
    block = largest_block(stage, sizes)
    ends = sum(trained_parameters(part, sizes.tensor) for part in stage.ends)
    head = rank_parameters(stage.exit, sizes.tensor) * sizes.gathered if stage.exit else 0.0
    arriving = block * sizes.gathered if sizes.zero == 3 else 0.0
    leaving = reduced_bytes(stage, sizes)
    return CommunicationBuffers(
        head=head, block=head + arriving + leaving, last=ends * (sizes.gathered + sizes.reduce)
    )


def reduced_bytes(stage: Stage, sizes: Sizes) -> float:
    """A block's gradients as they were made, and in one tensor that travels."""
    if sizes.settled.slices:  # what other ranks sent stands beside it, to be added up in order
        return largest_trained(stage, sizes) * (sizes.gathered + 2 * sizes.reduce)
    if sizes.waiting:  # sums of micro-batches, which are counted there
        return 0.0
    return largest_trained(stage, sizes) * (sizes.work + sizes.reduce)


def compression_bytes(facts: Facts, stage: Stage, sizes: Sizes) -> tuple[float, float]:
    """What compression keeps from step to step, and what it needs while a bucket travels."""
    how = sizes.settled.plan.compress.kind
    trained = stage.trained(sizes.tensor, facts.tied_parameters)
    gradients, largest = trained * sizes.gradient, largest_gradient(stage, sizes)
    bucket = filled(gradients, DDP_BUCKET_BYTES, largest)
    if how == "powersgd":
        wide = BYTES["float32"] / sizes.gradient
        return trained * BYTES["float32"], (bucket + POWERSGD_MATRICES * largest) * wide
    if how == "none" or sizes.gradient == BYTES["bfloat16"]:
        return 0.0, 0.0
    # The copy of one bucket may still travel when the next is ready.
    return 0.0, min(2 * bucket, gradients) * BYTES["bfloat16"] / sizes.gradient


def gathered_after_update(facts: Facts, stage: Stage, sizes: Sizes) -> float:
    """ZeRO 1: a rank's slices, those of all, and one parameter put together from them."""
    if not sizes.settled.slices_optimizer_only:
        return 0.0
    parameters = stage.parameters(sizes.tensor, facts.tied_parameters) * sizes.parameter
    largest = largest_gradient(stage, sizes) * sizes.parameter / sizes.gradient
    return filled(parameters, PARAMETER_BUCKET_BYTES, largest) * (1 + 1 / sizes.shard) + largest


def exchanged_in_order(facts: Facts, stage: Stage, sizes: Sizes) -> float:
    """Whole gradients added up over ranks in a fixed order: sent, received, and the result."""
    gradients = stage.trained(sizes.tensor, facts.tied_parameters) * sizes.gradient
    bucket = filled(gradients, PARAMETER_BUCKET_BYTES, largest_gradient(stage, sizes))
    return max(3 * bucket, gathered_after_update(facts, stage, sizes))


def filled(every: float, limit: float, largest: float) -> float:
    """The largest bucket: the tensor that reaches the limit is the last one in it."""
    return min(every, limit + largest)


def largest_gradient(stage: Stage, sizes: Sizes) -> float:
    parts = [*stage.ends, *(part for part, _ in stage.blocks)]
    return max(weight_bytes(part, sizes) for part in parts)


def weight_bytes(part: Part, sizes: Sizes) -> float:
    """The gradient of a part's largest weight."""
    largest = max((m.weights for m in part.matmuls), default=part.parameters)
    ways = 1 if part.whole else sizes.tensor
    return min(largest, part.parameters - part.frozen_parameters) * sizes.gradient / ways


def largest_block(stage: Stage, sizes: Sizes) -> float:
    parts = [part for part, _ in stage.blocks]
    each = (rank_parameters(part, sizes.tensor, sizes.experts) for part in parts)
    return max(each, default=0.0)


def largest_trained(stage: Stage, sizes: Sizes) -> float:
    parts = [part for part, _ in stage.blocks]
    each = (trained_parameters(part, sizes.tensor, sizes.experts) for part in parts)
    return max(each, default=0.0)
