"""How a training framework runs a plan, where frameworks differ.

The default is stepladder on torch. The other settings let a forecast be compared with published
runs of other frameworks, in which the same plan means slightly different things.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How blocks are dealt to pipeline stages: so that the dearest stage, ends included, is as cheap as
# can be; in equal numbers, the last stages one more; or each stage until it passes its share.
Cuts = Literal["cost", "even", "crossing"]


@dataclass(frozen=True, slots=True)
class Software:
    """Implementation choices of a framework that change its memory or time."""

    # fused: no fp32 copy, gradient written in place; in-place: one, softmax first, gradient then
    loss: Literal["plain", "fused", "in-place"] = "plain"
    compiles_loss: bool = False  # with the blocks; ours does so for compile=whole alone
    keeps_logits: bool = False  # they stand beside their softmax until backward has passed them
    recomputed_matmuls: float = 0.0  # share of its products that selective recomputation repeats
    recomputes_scores: bool = False  # plain attention keeps no scores and makes them once more
    score_bytes: float = 26.0  # it moves forward per score: scale, mask, softmax in fp32, cast, use
    stops_early: bool = True  # recomputation ends when backward has all it asked for
    regathers: bool = False  # tensor-parallel inputs are gathered again rather than kept
    slices_stream: bool = True  # between blocks each tensor rank holds a slice of the sequence
    balances: bool = False  # context ranks hold an early and a late stretch: equal causal work
    hides_context: bool = False  # keys travel around the context ranks beside attention
    hides_tensor: bool = False  # tensor-parallel collectives run in pieces beside the products
    masters: bool = False  # fp32 parameters live with the optimizer; work and gradients are apart
    gradient: str | None = None  # type that gradients are kept in; None: that of the parameters
    update_bytes: float = 0.0  # beside each parameter while it is updated: gradients copied, roots
    drops_gradients: bool = False  # sliced ones are gone from the update until backward makes them
    fuses_head: bool = False  # the head and its loss run chunk by chunk on any number of ranks
    bucket_bytes: float = 0.0  # of flat gradients: one fills while one travels; 0: torch's own
    cuts: Cuts = "cost"
    adds_later: bool = False  # a pass's own gradients wait, all of them, to be added to the sum
    cast_bytes: float = 6.0  # moved to make an fp8 operand: read for the scale, read, write twice
    casts_once: bool = False  # weights are cast to fp8 for a batch's first pass alone
    adds_inside: bool = False  # products add to the kept gradients as they write
    scatters: bool = False  # ZeRO 1: a rank gets the gradients it owns, parameters return early
    gather: str | None = None  # type that sliced parameters travel in; None: the work type
    host_factor: float = 1.0  # time of the host between launches, over ours
    narrower: float = 1.0  # rate of products in fewer bits than the plan's, over the plan's
    attention_flops_per_second: float | None = None  # of its own attention kernel


OURS = Software()
