"""Logits of a large vocabulary: the memory they need and the traffic they cause.

Plain torch holds, per token and class: at the end of forward the logits in the work type, their
copy in fp32 where that differs, and log-softmax in fp32; when backward begins log-softmax and two
fp32 gradients (4 + 4 + 4), the logits being gone by then; last the gradient in the work type alone.
A fused loss holds the logits and writes their gradient in the work type. The head and its loss as
one hold a chunk of the logits, whose place their gradient takes, and the sum of the weight's
gradient in fp32; when forward ends both gradients are made.
"""

from __future__ import annotations

from stepladder.plan.shared_constants import LOGIT_CHUNK
from stepladder.workload import Facts

from .byte_sizes import Sizes

SINGLE = 4  # bytes of float32, in which every loss is computed


def forward_logit_bytes(facts: Facts, sizes: Sizes) -> float:
    """Bytes of logits alive when forward ends."""
    if sizes.fused_head:
        return chunk_logits(facts, sizes) * sizes.work + weight_sum_bytes(facts, sizes)
    copy = SINGLE if sizes.work < SINGLE else 0
    each = {"fused": 0, "in-place": copy, "plain": copy + SINGLE}[sizes.software.loss]
    return num_logits(facts, sizes) * (sizes.work + each)


def backward_logit_bytes(facts: Facts, sizes: Sizes) -> float:
    """Bytes of logits and their gradients alive when backward begins."""
    if sizes.fused_head:
        return weight_sum_bytes(facts, sizes)
    held = sizes.work if sizes.software.keeps_logits else 0
    if sizes.software.loss == "plain":
        return num_logits(facts, sizes) * (3 * SINGLE + held)
    single = 0 if sizes.software.loss == "fused" else SINGLE
    return num_logits(facts, sizes) * (2 * sizes.work + single)


def logit_gradient_bytes(facts: Facts, sizes: Sizes) -> float:
    """Bytes of logit gradients alive while the head's weight gradient is computed."""
    return 0.0 if sizes.fused_head else num_logits(facts, sizes) * sizes.work


def logit_traffic_bytes(facts: Facts, sizes: Sizes) -> float:
    """Read and written in forward and backward, beside the head's own product."""
    if sizes.fused_head:  # read twice, and written over; the sum read and written a chunk
        chunks = num_logits(facts, sizes) / chunk_logits(facts, sizes)
        return num_logits(facts, sizes) * 3 * sizes.work + 2 * chunks * weight_sum_bytes(
            facts, sizes
        )
    if sizes.software.loss == "fused":
        return num_logits(facts, sizes) * 6 * sizes.work
    if sizes.settled.compiles_loss or (sizes.compiled and sizes.software.compiles_loss):
        return num_logits(facts, sizes) * (4 * SINGLE + sizes.work)
    # Log-softmax reads each row for its maximum, its sum and the result, and writes that; backward
    # fills in the chosen classes' gradient, reads both for a sum, again for the result, writes it.
    singles = (3 + 1) + (1 + 2 + 2 + 1)
    copies = 2 * (sizes.work + SINGLE) if sizes.work < SINGLE else 0  # to fp32, and back
    return num_logits(facts, sizes) * (singles * SINGLE + copies)


def num_logits(facts: Facts, sizes: Sizes) -> float:
    """Of one rank, for one micro-batch."""
    return facts.vocab * facts.tokens * sizes.samples / sizes.context / sizes.tensor


def chunk_logits(facts: Facts, sizes: Sizes) -> float:
    return min(num_logits(facts, sizes), facts.vocab / sizes.tensor * LOGIT_CHUNK)


def weight_sum_bytes(facts: Facts, sizes: Sizes) -> float:
    """The head's gradient, of this rank's classes, while chunks are added to it."""
    heads = [m for m in facts.exit.matmuls if m.columns == facts.vocab]
    return sum(m.inner * m.columns for m in heads) * SINGLE / sizes.tensor
