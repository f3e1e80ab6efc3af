"""Rows that ranks send each other for their experts, and what one uneven router makes of them.

A rank sends the rows of its tokens to the ranks of their experts and gets back what these gave;
backward sends as many gradients. With an even load each rank keeps its own share of them.
"""

from __future__ import annotations

from dataclasses import replace

from stepladder.errors import PlanError
from stepladder.plan import SettledPlan
from stepladder.planner.memory.byte_sizes import Sizes, sizes_of
from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.memory.saved_activations import block_shares
from stepladder.planner.pipeline_stages import stages_of
from stepladder.workload import ElementsByType, Facts, MatmulFacts, Part


def expert_matmuls(part: Part) -> list[MatmulFacts]:
    return [matrix for matrix in part.matmuls if matrix.experts > 1]


def row_bytes(part: Part, sizes: Sizes) -> float:
    """Of one micro-batch's rows as the first matmul of their experts reads them."""
    found = expert_matmuls(part)
    elements = found[0].rows * found[0].inner if found else 0
    return elements * sizes.samples / sizes.context * sizes.work


def exchanges(depths: RecomputeShares) -> tuple[float, float]:
    """How often rows travel in a forward pass of a block, and in its backward pass.

    To the experts and back; nothing of it is kept where a block is computed again.
    """
    return 2, 2 * (1 + depths.whole + depths.cheap)


def sent_bytes(facts: Facts, settled: SettledPlan) -> float | None:
    """What a rank sends to others in a step, in the stage that sends most; None: experts stay."""
    sizes, plan = sizes_of(facts, settled), settled.plan
    if sizes.experts == 1:
        return None
    leaving = 1 - 1 / sizes.experts
    each = []
    for stage in stages_of(facts, plan.layout, plan.schedule):
        shares = (block_shares(p, plan.recompute, stage.num_blocks, sizes) for p, _ in stage.blocks)
        times = [sum(exchanges(depths)) for depths in shares]
        rows = [row_bytes(part, sizes) * count for part, count in stage.blocks]
        each.append(sum(one * often for one, often in zip(rows, times)))
    return max(each) * leaving * sizes.micro_batches


def with_load(facts: Facts, load: float) -> Facts:
    """The facts as the rank sees them whose experts get so many times an even share of rows."""
    if load < 1:
        problem = f"{load:g} is less than an even share, which the busiest rank has at least"
        raise PlanError("expert_load", problem, "Use 1 or more, as report.expert_rank_load says.")
    return replace(facts, parts=tuple(loaded(part, load) for part in facts.parts))


def loaded(part: Part, load: float) -> Part:
    """With more rows of its experts; what they save for backward grows by the same share."""
    if load == 1 or not (experts := expert_matmuls(part)):
        return part
    read, made = (sum(m.rows * m.inner for m in experts), [m.rows * m.columns for m in experts])
    more = ElementsByType(work=(load - 1) * (read + sum(made[:-1])))
    return replace(
        part,
        matmuls=tuple(
            replace(m, rows=round(m.rows * load)) if m.experts > 1 else m for m in part.matmuls
        ),
        eager=part.eager + more,
        compiled=part.compiled + more,
        selective=part.selective + more,
    )
