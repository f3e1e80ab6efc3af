"""Seconds that the host needs to ask the device for one pass of a part, forward and backward.

The unit is what a cheap operation costs the host in both directions, `launch_seconds`, which
`calibrate` measures on blocks too small to keep the device busy. A product is dearer: a module's
call, views, two products and a sum in backward, gradients put where they belong (`PRODUCT`), and
autocast adds a copy of input, weight and bias and of each of their gradients (`AUTOCAST`).
Compiling a block takes away its cheap operations, but not this: its weights are still cast and
their gradients still put away one by one, with guards to check instead of calls to make.

The constants were read off steps of an H200 in which the device waited (the sweeps and GPT cases of
benchmarks/results/planner_gpu.json). A pass of 12 GPT blocks took 37 to 43 ms with autocast, 64 to
74 with all blocks recomputed and 116 to 136 where only products and attention are kept; without
autocast, every second block recomputed, 34. Passes of 16 Llama blocks took 52, 94 and 171 ms.
"""

from __future__ import annotations

from stepladder.workload import Part

from .depths import Depths

PRODUCT = 9.0
AUTOCAST = 6.0
WHOLE_AGAIN = 0.8  # of a block, by running it forward again and by the bookkeeping for that
CHEAP_AGAIN = 2.7  # the same where Python looks at every operation to decide what is kept


def pass_launches(part: Part, *, autocast: bool, compiled: bool = False) -> float:
    """Of one pass forward and backward, in units of a cheap operation."""
    kernels, products = part.kernels[1 if compiled else 0], len(part.matrices)
    each = PRODUCT + (AUTOCAST if autocast else 0.0)
    return max(kernels - products, 0) + each * products


def again_launches(depths: Depths, *, compiled: bool) -> float:
    """What recomputation adds, as a share of a pass; a compiler decides what is kept only once."""
    cheap = 0.0 if compiled else CHEAP_AGAIN
    return WHOLE_AGAIN * depths.whole + cheap * depths.cheap
