"""Host time: what launching the kernels of a part, and of an update, costs the CPU.

The unit is a launch with autograd around it, `launch_seconds`, which `calibrate` measures on blocks
too small to keep the device busy. How many there are is counted where a module is traced: every
operation, and under autocast a cast for each parameter and one for its gradient. What else the host
does is given in the same unit, each measured by a calibration (`HOST_FACTORS` where there is none):

    product, cheap                 a launch of a product, a convolution or attention; any other
    block again, launch again      of a block computed once more: what checkpointing does around it
                                   (hooks, generators), and for each launch of its forward
    block chosen, launch chosen    of a block that keeps what is dear: forward twice under a mode
                                   of Python's that looks at every operation
    compiled                       a launch of compiled code: guards, and a runtime in Python
    tensor, step                   of an update: for each parameter, and once

The device starts nothing it was not asked for, and runs behind otherwise: it is late by the most
that asking was ever ahead of the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.workload import Launches, Part

NOTHING_RECOMPUTED = RecomputeShares()  # nothing is computed again

# Of tiny blocks on two H200s, whose hosts took 26 and 31 µs a launch. How the costs of recomputing
# divide into a block's and its launches' is torch's doing, the same on every host, and was timed on
# a processor (benchmarks/planner/host_costs.py): a block for 50 launches, one that chooses for 23.
HOST_FACTORS = {
    "product": 2.3, "cheap": 0.6, "block again": 80.0, "launch again": 1.6,
    "block chosen": 100.0, "launch chosen": 4.4, "compiled": 0.8, "tensor": 0.3, "step": 30.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Cost of launching a part's kernels, in units of one eager autocast launch, or in seconds."""

    forward: float = 0.0
    backward: float = 0.0

    def times(self, factor: float) -> LaunchCost:
        return LaunchCost(self.forward * factor, self.backward * factor)

    @property
    def total(self) -> float:
        return self.forward + self.backward


def launches_of(launches: Launches, autocast: bool, compiled: bool) -> float:
    """Launches of one direction; compiled code casts parameters one by one as well."""
    if compiled:
        return launches.compiled + (launches.mixed - launches.eager if autocast else 0.0)
    return launches.mixed if autocast else launches.eager


def library_calls(part: Part) -> tuple[int, int]:
    """Calls of a library, forward and backward: the launches that cost the host most."""
    attends = int(part.attention is not None)
    return len(part.matmuls) + attends, sum(m.backward for m in part.matmuls) + attends


def part_launch_cost(
    part: Part,
    depths: RecomputeShares = NOTHING_RECOMPUTED,
    *,
    autocast: bool,
    compiled: bool = False,
    added: float = 0.0,
    factors: Mapping[str, float] | None = None,
) -> LaunchCost:
    """Launch cost of one micro-batch through a part, recomputation included.

    Args:
        added: the share of micro-batches that find gradients to add theirs to.
    """
    known = {**HOST_FACTORS, **(factors or {})}
    launches = launches_of(part.launches, autocast, compiled)
    further = launches_of(part.launches_back, autocast, compiled)
    further = (further or 2 * launches) + added * part.tensors  # a backward that was not traced
    if compiled:  # a compiler decides only once what is saved
        once = known["compiled"]
        return LaunchCost(once * launches, once * (further + depths.whole * launches))
    ahead, back = (
        known["product"] * min(products, all_) + known["cheap"] * max(all_ - products, 0.0)
        for products, all_ in zip(library_calls(part), (launches, further))
    )
    again = depths.whole * (known["block again"] + known["launch again"] * launches)
    chosen = depths.cheap * (known["block chosen"] + known["launch chosen"] * launches)
    return LaunchCost(ahead + chosen / 2, back + again + chosen / 2)


def update_launch_cost(tensors: float, factors: Mapping[str, float]) -> float:
    """Launch cost of updating so many parameter tensors and of ending the step."""
    known = {**HOST_FACTORS, **factors}
    return known["step"] + known["tensor"] * tensors


def host_delay_seconds(turns: Iterable[tuple[float, float]]) -> float:
    """Seconds by which the device finishes late because it waited for launches.

    Args:
        turns: in order, seconds to ask for some work and seconds of that work.
    """
    ahead = late = 0.0
    for asked, work in turns:
        ahead += asked - work
        late = max(late, ahead)
    return late
