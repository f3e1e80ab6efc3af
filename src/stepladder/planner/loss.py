"""The loss over a large vocabulary: what its logits hold and move.

Plain torch holds, per token and class: at the end of forward the logits in the work type, their
copy in fp32 where that differs, and log-softmax in fp32; when backward begins log-softmax and two
fp32 gradients (4 + 4 + 4), the logits being gone by then; last the gradient in the work type alone.
A fused loss holds the logits and writes their gradient in the work type.
"""

from __future__ import annotations

from stepladder.workload import Facts

from .sizes import Sizes

SINGLE = 4  # bytes of float32, in which every loss is computed


def answer_bytes(facts: Facts, sizes: Sizes) -> float:
    """Alive when forward ends."""
    copy = SINGLE if sizes.work < SINGLE else 0
    each = sizes.work if sizes.software.loss == "fused" else sizes.work + copy + SINGLE
    return num_logits(facts, sizes) * each


def logit_bytes(facts: Facts, sizes: Sizes) -> float:
    """Alive when backward begins."""
    held = sizes.work if sizes.software.keeps_logits else 0
    each = 2 * sizes.work if sizes.software.loss == "fused" else 3 * SINGLE + held
    return num_logits(facts, sizes) * each


def gradient_bytes(facts: Facts, sizes: Sizes) -> float:
    """Alive while the head's weight gets its gradient."""
    return num_logits(facts, sizes) * sizes.work


def logit_traffic_bytes(facts: Facts, sizes: Sizes) -> float:
    """Read and written in forward and backward, beside the head's own product."""
    if sizes.software.loss == "fused":
        return num_logits(facts, sizes) * 6 * sizes.work
    if sizes.compiled and sizes.software.compiles_loss:
        return num_logits(facts, sizes) * (4 * SINGLE + sizes.work)
    # Log-softmax reads each row for its maximum, its sum and the result, and writes that; backward
    # fills in the chosen classes' gradient, reads both for a sum, again for the result, writes it.
    singles = (3 + 1) + (1 + 2 + 2 + 1)
    copies = 2 * (sizes.work + SINGLE) if sizes.work < SINGLE else 0  # to fp32, and back
    return num_logits(facts, sizes) * (singles * SINGLE + copies)


def num_logits(facts: Facts, sizes: Sizes) -> float:
    """Of one rank, for one micro-batch."""
    return facts.vocab * facts.tokens * sizes.samples / sizes.context / sizes.tensor
