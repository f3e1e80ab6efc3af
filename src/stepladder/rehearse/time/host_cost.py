"""What the host pays for asking for an operation, in launches, the unit of a calibration.

A calibration asks a tiny model for its gradients again and again, and little else is in the caches
of the processor. A module's own code, and the step around it, cost more: by how much was fitted to
eight modules on the host of an H200, each asked for steps of one row (benchmarks/time_gpu.py), and
is told by leaving each of them out in benchmarks/results/time_gpu.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .operations import (
    ASKING,
    ATTENTION,
    CONVOLUTION,
    COPYING,
    MEMORY,
    PRODUCT,
    RECURRENT,
    Operation,
)

LIBRARY = (PRODUCT, CONVOLUTION, ATTENTION, RECURRENT)
AMONG_OTHERS = 0.55  # launches more of each kernel that a module's own code asks for
CONVOLVING = 3.3  # more of a convolution, whose images a library also stores in its own order
BEGINNING = 100.0  # of a step: its batch, its clock, its checks
FORWARD_STEP, BACKWARD_STEP = 1.0, 1.6  # of one step of a recurrent cell
VIEW_ALONE = 0.12  # of a view or an allocation on a processor; on a GPU the mean launch holds them


@dataclass(frozen=True, slots=True)
class HostCost:
    """Of one plan on one machine."""

    launch_seconds: float
    factors: Mapping[str, float] = field(default_factory=dict)
    processor: bool = False  # whether the host is the device
    compiled: bool = False  # whether a compiler asks for kernels, and not torch for operations

    @property
    def block_seconds(self) -> float:
        """What checkpointing does around a block that is computed again."""
        return 0.0 if self.compiled else self.factors["block again"] * self.launch_seconds

    def seconds(self, one: Operation) -> float:
        return self.launch_seconds * (self.launches(one) + self.surroundings(one))

    def launches(self, one: Operation) -> float:
        if one.kind == ASKING:
            return VIEW_ALONE if self.processor else 0.0
        if one.tensors > 1:
            return self.of_update(one)
        if self.compiled and one.kind == MEMORY:
            return self.factors["compiled"]
        if one.kind == RECURRENT:
            return one.lanes * (BACKWARD_STEP if one.backward else FORWARD_STEP)
        if one.again:
            return self.factors["launch again"]
        return self.factors["product" if one.kind in LIBRARY else "cheap"]

    def of_update(self, one: Operation) -> float:
        whole = "fused" in one.name
        each = self.factors["tensor"] * (1.0 if whole else 0.5)
        return (self.factors["step"] if whole else 0.0) + each * one.tensors

    def surroundings(self, one: Operation) -> float:
        """What a tiny model that is asked for nothing but gradients does not pay."""
        if self.processor or one.kind == ASKING:
            return 0.0
        if one.kind == COPYING:  # of the batch, with which a step begins
            return BEGINNING
        more = CONVOLVING if one.kind == CONVOLUTION else 0.0
        return more + (0.0 if self.compiled or one.tensors > 1 else AMONG_OTHERS)
