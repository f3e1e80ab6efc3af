"""Seconds that the host needs to ask the device for one pass of a part.

The unit is a launch with autograd around it, `launch_seconds`, which `calibrate` measures on blocks
too small to keep the device busy. How many there are is counted where a module is traced: every
operation, and under autocast a cast for each parameter and one for its gradient. Ways of running
differ in what a launch costs, and the calibration measures each (`FACTORS` where there is none):

    pure       no casts to look up, so fewer launches, each of a dearer kind
    blocks     forward once more, with what checkpointing does around it: hooks, generators
    selective  forward twice under a mode of Python's that looks at every operation
    compiled   guards, and a runtime that passes what a graph returns through Python

The device starts nothing it was not asked for, and runs behind otherwise: a pass takes the longest
of all its work, asking for forward and then backward's work, and asking for everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepladder.workload import Launches, Part

from .depths import Depths

KEPT = Depths()  # nothing is computed again

# On an H200 whose host took 28 µs a launch.
FACTORS = {"pure": 1.2, "blocks": 2.0, "selective": 6.0, "compiled": 1.0}


@dataclass(frozen=True, slots=True)
class Asking:
    """Launches of a pass, in units of one of eager autocast."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Asking) -> Asking:
        return Asking(self.forward + other.forward, self.backward + other.backward)

    def times(self, factor: float) -> Asking:
        return Asking(self.forward * factor, self.backward * factor)

    @property
    def total(self) -> float:
        return self.forward + self.backward


def launches_of(launches: Launches, autocast: bool, compiled: bool) -> float:
    """In one direction; compiled code casts parameters one by one as well."""
    if compiled:
        return launches.compiled + (launches.mixed - launches.eager if autocast else 0.0)
    return launches.mixed if autocast else launches.eager


def part_asking(
    part: Part,
    depths: Depths = KEPT,
    *,
    autocast: bool,
    compiled: bool = False,
    added: float = 0.0,
    factors: Mapping[str, float] | None = None,
) -> Asking:
    """What one pass of a part asks for, recomputation included.

    Args:
        added: the share of passes that find gradients to add theirs to.
    """
    known = {**FACTORS, **(factors or {})}
    ahead, back = (
        launches_of(each, autocast, compiled) for each in (part.launches, part.launches_back)
    )
    back = (back or 2 * ahead) + added * part.tensors  # an end's backward nobody watched
    if compiled:  # a compiler decides what is kept only once
        once = known["compiled"]
        return Asking(once * ahead, once * (back + depths.whole * ahead))
    once = 1.0 if autocast else known["pure"]
    # Checkpointing looks at every tensor that forward keeps, whatever casts them.
    hooks = (known["blocks"] - 1.0) * part.launches.mixed
    whole, cheap = depths.whole * (once * ahead + hooks), known["selective"] * depths.cheap
    return Asking((once + cheap / 2) * ahead, once * back + whole + cheap / 2 * ahead)


def late_seconds(asked: Asking, forward: float, backward: float) -> float:
    """By how much a pass is longer than its work, which is so long in each direction."""
    waits = asked.forward + backward, asked.total
    return max(*waits, forward + backward) - forward - backward
