"""What a search for the first difference found, and the sentences that say it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

WIDTH = 80
NEAR = 0.02  # a factor is named where it explains all but this share of a difference

Inputs = Literal["the same bits", "the same but for rounding", "different", "not compared"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tensor that differs by more than rounding explains."""

    plan: str
    step: int
    kind: str  # input, output, loss, output gradient, gradient, optimizer state, parameter, buffer
    module: str  # whose code computes it; empty: the module that was given
    name: str  # of the tensor, as a phrase
    micro_batch: int | None  # None: of the whole step, as the next
    rank: int | None
    distance: float  # relative to the norm of what it should be
    allowed: float  # what rounding explains, relative likewise
    inputs: Inputs  # what it is computed from
    factor: float | None = None  # it is what it should be times this
    differ: int = 1  # tensors of its kind in this step that differ
    compared: int = 1  # tensors of its kind in this step
    said: tuple[str, ...] = ()  # the run's own reasons why results depend on the plan

    def __str__(self) -> str:
        where = [f"step {self.step}"]
        where += [] if self.micro_batch is None else [f"micro-batch {self.micro_batch}"]
        where += [] if self.rank is None else [f"rank {self.rank}"]
        off = f"off by {self.distance:.1e} of its norm, and rounding explains {self.allowed:.1e}"
        times = f"; it is {self.factor:.4g} times what it should be" if self.factor else ""
        lines = [
            f"'{self.plan}', {', '.join(where)}: {self.name} is the first to differ: {off}{times}.",
            f"Computed by {self.module or 'the module itself'}; what it is computed from is "
            f"{self.inputs}. {self.differ} of {self.compared} tensors of this kind differ in "
            "this step.",
            *(f"The run said: {line}." for line in self.said),
        ]
        return "\n".join(textwrap.fill(line, WIDTH) for line in lines)


@dataclass(frozen=True, slots=True)
class Location:
    """One plan's run beside the reference's, tensor by tensor."""

    plan: str
    optimizer: str
    difference: Difference | None  # None: nothing differs by more than rounding explains
    compared: int = 0  # tensors, over all steps, micro-batches and ranks
    same_bits: int = 0  # of them
    left_out: Mapping[str, str] = field(default_factory=dict)  # what could not be compared, and why
    problem: str = ""  # why the plan never ran

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, as JSON can hold it."""
        return asdict(self)

    def __str__(self) -> str:
        if self.problem:
            return textwrap.fill(f"'{self.plan}': {self.problem}", WIDTH)
        share = f"{self.compared} tensors compared, {self.same_bits} of them the same bits"
        nothing = f"'{self.plan}' ({self.optimizer}): no tensor differs by more than rounding"
        lines = [str(self.difference) if self.difference else f"{nothing}: {share}."]
        if self.left_out:
            names = ", ".join(list(self.left_out)[:3])
            more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
            lines.append(f"Not compared: {names}{more}.")
        return "\n".join(
            line if self.difference and i == 0 else textwrap.fill(line, WIDTH)
            for i, line in enumerate(lines)
        )
