"""Elastic training: refit a plan to another number of ranks when a node is lost or returns.

The mathematics stays: global batch, precision, optimizer and learning rate are the plan's own. How
the work is divided follows the ranks that are left, by one rule. Tensor, context and pipeline
keep their ways or fall to a divisor of them (what cut the model before cuts it still); of the
layouts that the ranks divide by and that break no rule, the one that cuts the model into most
parts is taken, since it needs the least memory, and among equals the one that keeps tensor, then
context. The remaining ranks are data ranks. What a layout no longer allows (compression without
copies, a schedule without a pipeline, recorded graphs on several ranks) is left out, and said.
Refit the plan that was asked for, never one refitted before: then what had to go comes back with
the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from stepladder.errors import PlanError, raise_all

from .batch import BatchSplit
from .layout import AXES, REST, Layout
from .options import Compress, Schedule
from .plan import Plan
from .settled.schedule_rules import fills, whole_rounds
from .settled.settle import legality_problems
from .settled.settled_plan import SettledPlan

SWITCHES = {"graphs": "recorded graphs"}
CUTS = ("tensor", "context", "experts", "pipeline")  # axes that cut the model, dearest first


@dataclass(frozen=True, slots=True)
class Refit:
    """A plan for another number of ranks, and what changed."""

    plan: Plan
    said: str = ""  # what changed, in a sentence; nothing where the plan fits as it is


def spread(plan: Plan, ranks: int) -> Plan:
    """A plan for several ranks: data parallel over all of them where it names no axis."""
    if ranks == 1 or plan.layout != Layout():
        return plan
    return replace(plan, layout=Layout(replicate=REST))


def refit(plan: Plan, num_ranks: int) -> Refit:
    """The plan for `num_ranks` ranks with the same global batch, and what had to change."""
    if fits(plan, num_ranks):
        return Refit(plan)
    broken: list[PlanError] = []
    for layout in layouts(plan, num_ranks):
        for candidate in candidates(plan, layout):
            broken = legality_problems(candidate, num_ranks, open_batch=True)
            if not broken:
                return Refit(candidate, describe_changes(plan, candidate, num_ranks))
    raise_all(broken)  # of the last: what even data parallel ranks with a plain schedule break
    raise PlanError(
        "ranks",
        f"no layout of {num_ranks} keeps the global batch of {plan.batch.sequences} and the rest "
        f"of '{plan}'",
        "Use a batch with a row for every rank, or another number of ranks.",
    )


def fits(plan: Plan, num_ranks: int) -> bool:
    """Whether the plan is legal on so many ranks as it stands."""
    return not legality_problems(plan, num_ranks)


def layouts(plan: Plan, num_ranks: int) -> Iterator[Layout]:
    """Layouts of so many ranks that cut the model no finer than the plan does, best first."""
    before = {axis: max(getattr(plan.layout, axis), 1) for axis in CUTS}
    cuts = [
        ways
        for ways in product(*(divisors(before[axis]) for axis in CUTS))
        if num_ranks % prod(ways) == 0
    ]
    for ways in sorted(cuts, key=lambda ways: (-prod(ways), *(-one for one in ways))):
        copies, slices = data_axes(plan, num_ranks // prod(ways))
        yield Layout(replicate=copies, shard=slices, **dict(zip(CUTS, ways)))


def data_axes(plan: Plan, data: int) -> tuple[int, int]:
    """Sizes of the replicate and shard axes; a hybrid-sharded plan keeps its shard size."""
    if not plan.zero:
        return data, 1
    slices = plan.layout.shard
    if plan.layout.replicate != 1 and slices > 1 and data % slices == 0:
        return data // slices, slices
    return 1, data


def candidates(plan: Plan, layout: Layout) -> Iterator[Plan]:
    """The plan in a layout, first with its own schedule and then with a plain one."""
    copies = plan.zero == 0 and layout.replicate > 1
    settled = SettledPlan(replace(plan, layout=layout))
    sliced = settled.sliced
    fitted = replace(
        plan,
        layout=layout,
        compress=plan.compress if copies else Compress(),
        prefetch=plan.prefetch if sliced else None,
        gathered=plan.gathered if sliced else None,
        graphs=plan.graphs and layout.num_ranks == 1,
    )
    schedules = (plan.schedule, Schedule()) if layout.pipeline > 1 else (Schedule(),)
    for schedule in schedules:
        batch = fit_batch(plan.batch, layout, schedule)
        if batch is not None:
            yield replace(fitted, schedule=schedule, batch=batch)


def fit_batch(batch: BatchSplit, layout: Layout, schedule: Schedule) -> BatchSplit | None:
    """The same global batch in micro-batches no larger than before; None where it cannot be."""
    sequences, ways, stages = batch.sequences, layout.data_ranks, layout.pipeline
    if sequences is None:
        return BatchSplit(micro=batch.micro)
    if sequences % ways:  # shares differ by a row, which a pipeline cannot do
        return BatchSplit(sequences, batch.micro) if stages == 1 and sequences >= ways else None
    rows = sequences // ways
    most = batch.micro or rows
    for micro in reversed(divisors(rows)):
        micro_batches = rows // micro
        in_turn = fills(schedule, micro_batches, stages) and whole_rounds(
            schedule, micro_batches, stages
        )
        if micro <= most and (stages == 1 or in_turn):
            return BatchSplit(sequences, micro if batch.micro or stages > 1 else None)
    return None


def divisors(number: int) -> list[int]:
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def describe_changes(before: Plan, after: Plan, num_ranks: int) -> str:
    """What changed, with its numbers."""
    changes = []
    for axis in AXES:
        was, now = getattr(before.layout, axis), getattr(after.layout, axis)
        if was not in (now, REST):
            changes.append(f"{axis} {was} to {now}")
    for word, name in (("micro", "micro"), ("accumulate", "micro_batches")):
        was, now = getattr(before.batch, name), getattr(after.batch, name)
        if was != now and was is not None:
            changes.append(f"{word} {was} to {'open' if now is None else now}")
    numbers = {name: f"{name}={getattr(before, name)}" for name in ("prefetch", "gathered")}
    gone = [
        SWITCHES.get(name) or numbers.get(name) or str(getattr(before, name))
        for name in ("compress", "schedule", *numbers, *SWITCHES)
        if getattr(before, name) != getattr(after, name)
    ]
    changes += [f"{name} left out" for name in gone]
    uneven = after.batch.sequences and after.batch.sequences % after.layout.data_ranks
    if uneven:
        changes.append("shares that differ by a row")
    same = f"the global batch stays {after.batch.sequences}" if after.batch.sequences else ""
    said = "; ".join(filter(None, [", ".join(changes), same]))
    return f"plan refitted to {num_ranks} rank{'s' * (num_ranks > 1)}: {said}"
