"""The loss over a large vocabulary: what its logits hold and move.

Plain torch holds, per token and class in 16 bits: the logits (2), log-softmax in fp32 (4) and in
backward two fp32 gradients (4 + 4); the cast to fp32 is gone by then. A fused loss holds the logits
and writes their gradient in the work type.
"""

from __future__ import annotations

from stepladder.workload import Facts

from .sizes import Sizes

SINGLE = 4  # bytes of float32, in which every loss is computed


def logit_bytes(facts: Facts, sizes: Sizes) -> float:
    """Alive at the worst moment, the start of backward."""
    each = 2 * sizes.work if sizes.software.loss == "fused" else sizes.work + 3 * SINGLE
    return num_logits(facts, sizes) * each


def logit_traffic_bytes(facts: Facts, sizes: Sizes) -> float:
    """Read and written in forward and backward, beside the head's own product."""
    if sizes.software.loss == "fused":
        return num_logits(facts, sizes) * 6 * sizes.work
    kernels = 4 if sizes.compiled else 7  # passes over the logits, each one reading or writing fp32
    return num_logits(facts, sizes) * (kernels * SINGLE + sizes.work)


def num_logits(facts: Facts, sizes: Sizes) -> float:
    """Of one rank, for one micro-batch."""
    return facts.vocab * facts.tokens * sizes.samples / sizes.context / sizes.tensor
