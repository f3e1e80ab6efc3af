"""A plan: precision, layout, batch, memory savings and optimizer of a run, as one frozen value.

A plan is frozen and is text: `Plan.parse(str(plan)) == plan`. It imports nothing that computes and
does nothing; rungs read its fields, the planner counts them, the run folder keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from stepladder.errors import PlanError, raise_all, require_type

from . import plan_text as words
from .batch import BatchSplit, nearest_multiples
from .layout import Layout
from .optimizer import Optimizer
from .options import Compress, Exact, Recompute, Schedule
from .precision import FP32, Precision


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is trained: precision, layout, batch, recomputation, and the rest of the ladder.

    >>> plan = Plan.parse("bf16 zero3 shard=8 micro=2 recompute=blocks")
    >>> plan.zero, plan.layout.num_ranks, str(plan.precision)
    (3, 8, 'bf16')
    >>> str(plan)
    'bf16 zero3 shard=8 micro=2 recompute=blocks'
    """

    precision: Precision = FP32
    keep: tuple[str, ...] = ()  # modules that stay in fp32, by name or its last part
    layout: Layout = Layout()
    zero: Literal[0, 1, 2, 3] = 0  # sliced along shard: 1 optimizer, 2 + gradients, 3 + parameters
    prefetch: int | None = None  # blocks gathered ahead of the one that computes; None: one
    gathered: int | None = None  # blocks whole at a time, at most; None: the usual few
    batch: BatchSplit = BatchSplit()
    recompute: Recompute = Recompute()
    offload: tuple[str, ...] = ()  # what lives in host memory
    compress: Compress = Compress()
    schedule: Schedule = Schedule()
    compile: bool | str = False  # True: what suits the blocks; "blocks" or "whole": in these pieces
    kernels: bool | tuple[str, ...] = False  # of `words.KERNELS`: all that are faster, or some
    graphs: bool = False  # a step's passes are recorded once and replayed without the host
    attention: str = "auto"
    batchnorm: str = "sync"  # whose rows batch statistics are over: all ranks', or each its own
    exact: Exact = Exact()  # whether results are the same bits each time, and on any ranks
    recheck: int = 0  # one step in so many is taken twice and compared; 0: none
    state: int = 16  # bytes a parameter with gradient, master and moments, where it has a master
    update: str = "step"  # or backward: of each parameter, as soon as its gradient is there
    memory_bytes: int | None = None  # a ceiling for the process on its device
    optimizer: Optimizer = Optimizer()

    def settle(self, num_ranks: int) -> Plan:
        """The plan for `num_ranks` ranks, with every open axis and batch size filled in."""
        placed = replace(self, layout=self.layout.settle(num_ranks)).check()
        batch = self.batch.cut(self.exact.slices) if self.exact.slices else self.batch
        return replace(placed, batch=batch.settle(placed.layout.data_ranks)).check()

    def check(self) -> Plan:
        """This plan, or every problem it has whatever the model and the machine."""
        raise_all(self.problems())
        return self

    def problems(self) -> list[PlanError]:
        if mistyped := type_problems(self):
            return mistyped
        found = [*self.layout.problems(), *self.batch.problems()]
        if self.zero and self.layout.shard == self.layout.experts == 1 != self.layout.replicate:
            found.append(
                PlanError(
                    "zero",
                    f"zero{self.zero} slices along shard, and shard is 1 in {self.layout}",
                    "Write shard=-1 for all ranks, or ddp to keep whole copies.",
                )
            )
        if not self.zero and self.layout.shard != 1:
            found.append(
                PlanError(
                    "layout.shard",
                    f"shard={self.layout.shard} without a word for what is sliced",
                    "Add zero1, zero2 or zero3.",
                )
            )
        return found + exact_problems(self)

    @classmethod
    def parse(cls, text: str) -> Plan:
        """A plan from its shorthand, such as `bf16 zero3 shard=8 micro=2 recompute=blocks`."""
        require_type("plan", text, str, "Write words, such as 'bf16 zero3 micro=2'.")
        return cls(**words.parse_fields(words.split_shorthand(text))).check()

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        return cls(**words.parse_fields(words.words_of_toml(text))).check()

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Plan:
        """A plan from a table of its words, as a run file holds it."""
        return cls(**words.parse_fields(words.words_of_table(table))).check()

    def to_toml(self) -> str:
        return words.write_toml(self._words())

    def __str__(self) -> str:
        return words.write_shorthand(self._words())

    def _words(self) -> dict[str, str]:
        return words.plan_words(values(self), values(Plan()))


TYPES = {"precision": Precision, "layout": Layout, "batch": BatchSplit, "optimizer": Optimizer}


def type_problems(plan: Plan) -> list[PlanError]:
    """Fields that hold what no plan's text could have put there."""
    found = [
        PlanError(name, f"a plan holds no {type(value).__name__}", f"Give a {kind.__name__}.")
        for name, kind in TYPES.items()
        if not isinstance(value := getattr(plan, name), kind)
    ]
    if plan.zero not in (0, 1, 2, 3):
        found.append(PlanError("zero", f"{plan.zero!r} is not a stage of ZeRO", "Use 0 to 3."))
    return found


def exact_problems(plan: Plan) -> list[PlanError]:
    """Why the ranks, or the batch, cannot take the slices of a plan that is exact over ranks."""
    slices, ranks, batch = plan.exact.slices, plan.layout.data_ranks, plan.batch
    found = []
    if slices and ranks > 0 and slices % ranks:
        problem = f"{ranks} data ranks cannot share {slices} slices of a batch evenly"
        power = 1 << (ranks.bit_length() - 1)
        more = f", or exact=ranks:{ranks}" if power == ranks else ""
        found.append(PlanError("exact", problem, f"Use {min(power, slices)} ranks{more}."))
    if slices and batch.sequences and batch.sequences % slices:
        near = nearest_multiples(batch.sequences, slices)
        problem = f"{batch.sequences} rows do not divide into {slices} equal slices"
        found.append(PlanError("batch.sequences", problem, f"Nearest that do: {near}."))
    elif slices and batch.sequences and batch.micro not in (None, batch.sequences // slices):
        found.append(batch.no_slice(batch.sequences, slices))
    return found


def values(plan: Plan) -> dict[str, Any]:
    return {f.name: getattr(plan, f.name) for f in fields(plan)}
