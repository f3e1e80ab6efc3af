"""Legality: one table of rules that a plan must keep for a workload on a cluster.

Each rule has a name, looks at one thing, and answers with the problem or with None. All rules run,
so that every problem is reported at once; none computes a forecast, so all of them together take
well under a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepladder.errors import PlanError, raise_all
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.plan.conflicts import (
    adafactor_needs_whole_matrices,
    compression_needs_copies,
    compression_needs_whole_matrices,
    factors_need_a_steady_scale,
    kernels_need_one_rank,
    parameters_leave_in_slices,
)
from stepladder.plan.layout import REST
from stepladder.plan.schedule_rules import (
    interleaving_turns,
    passes_fill_stages,
    virtual_needs_pipeline,
    zero_bubble_keeps_parameters,
    zero_bubble_runs_again_twice,
    zero_bubble_splits_what_it_sees,
)
from stepladder.workload import Facts

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Question:
    """A plan for a workload on a cluster; its layout is settled, its batch where it could be."""

    facts: Facts
    plan: Plan
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    find: Callable[[Question], PlanError | None]


def check(facts: Facts, plan: Plan, cluster: Cluster) -> Plan:
    """Settle the plan for the cluster, or raise every problem it has."""
    raise_all(problems(facts, plan, cluster))
    return plan.settle(cluster.num_devices)


def problems(facts: Facts, plan: Plan, cluster: Cluster) -> list[PlanError]:
    """Every rule that the plan breaks."""
    found, settled = settle(plan, cluster.num_devices)
    question = Question(facts, settled, cluster)
    return [*found, *(p for rule in RULES if (p := rule.find(question)) is not None)]


def settle(plan: Plan, num_devices: int) -> tuple[list[PlanError], Plan]:
    """The plan as far as it can be settled, and what stood in the way."""
    found = plan.problems()
    try:
        return found, plan.settle(num_devices)
    except PlanError as problem:
        several = getattr(problem, "problems", (problem,))
        known = {str(each) for each in found}
        found += [each for each in several if str(each) not in known]
    closed = {a: 1 for a in ("replicate", "shard", "tensor") if getattr(plan.layout, a) == REST}
    return found, replace(plan, layout=replace(plan.layout, **closed))


def divisors(number: int) -> str:
    """The ways that divide a number, in words."""
    ways = [str(n) for n in range(1, min(number, 64) + 1) if number % n == 0]
    return f"Use {', '.join(ways[:-1])} or {ways[-1]}." if len(ways) > 1 else "Use 1."


def heads_divide(q: Question) -> PlanError | None:
    ways = q.plan.layout.tensor
    for part in q.facts.parts:
        if part.attention and part.attention.heads % ways:
            problem = f"{ways} ways cannot cut {part.attention.heads} attention heads evenly"
            return PlanError("layout.tensor", problem, divisors(part.attention.heads))
    return None


def key_heads_divide(q: Question) -> PlanError | None:
    ways = q.plan.layout.tensor
    for part in q.facts.parts:
        if part.attention and part.attention.kv_heads % ways:
            problem = f"{ways} ways cannot cut {part.attention.kv_heads} key-value heads evenly"
            return PlanError("layout.tensor", problem, divisors(part.attention.kv_heads))
    return None


def widths_divide(q: Question) -> PlanError | None:
    ways = q.plan.layout.tensor
    for part in q.facts.parts[:-1]:  # classes of the exit may divide unevenly
        for matrix in part.matrices:
            width = {"columns": matrix.columns, "inner": matrix.inner, "": ways}[matrix.cut]
            if width % ways:
                problem = f"{ways} ways cannot cut a width of {width} in '{part.name}' evenly"
                return PlanError("layout.tensor", problem, divisors(width))
    return None


def something_to_cut(q: Question) -> PlanError | None:
    cut = any(matrix.cut for part in q.facts.parts for matrix in part.matrices)
    if q.plan.layout.tensor == 1 or cut:
        return None
    problem = f"{q.facts.name} has no matrices that are known to be cut in pairs"
    return PlanError("layout.tensor", problem, "Use 1, and shard or pipeline instead.")


def tokens_divide_by_tensor(q: Question) -> PlanError | None:
    layout, tokens = q.plan.layout, q.facts.tokens
    ways = layout.tensor * layout.context
    whole = layout.tensor == 1 or tokens == 1  # nothing in a row: every rank has the whole stream
    if whole or tokens % ways == 0 or tokens % layout.context:
        return None
    problem = f"{tokens} tokens do not divide by tensor x context = {ways}, which slice them"
    return PlanError("layout.tensor", problem, f"Use a sequence of {tokens // ways * ways}.")


def context_divides(q: Question) -> PlanError | None:
    ways, tokens = q.plan.layout.context, q.facts.tokens
    if tokens % ways == 0:
        return None
    problem = f"{ways} ways cannot slice {tokens} tokens evenly"
    return PlanError("layout.context", problem, f"Use a sequence of {tokens // ways * ways}.")


def context_needs_attention(q: Question) -> PlanError | None:
    if q.plan.layout.context == 1 or any(part.attention for part in q.facts.parts):
        return None
    problem = f"{q.facts.name} has no attention along which a sequence could be sliced"
    return PlanError("layout.context", problem, "Use 1.")


def stages_have_blocks(q: Question) -> PlanError | None:
    layout, schedule, blocks = q.plan.layout, q.plan.schedule, q.facts.num_blocks
    stages = layout.pipeline * schedule.virtual
    if layout.pipeline == 1 or stages <= blocks:
        return None
    problem = f"{stages} stages for {blocks} blocks leaves some stages empty"
    return PlanError("layout.pipeline", problem, f"Use at most {blocks // schedule.virtual}.")


def folded_ends_share_nothing(q: Question) -> PlanError | None:
    folded = q.plan.schedule.kind == "zero-bubble" and q.plan.layout.pipeline > 1
    if not folded or q.plan.zero != 2 or not q.facts.tied_parameters:
        return None
    problem = (
        "zero-bubble has the head and the embedding, one matrix, in two stages of a rank, "
        "and zero2 slices each stage by itself"
    )
    return PlanError("schedule", problem, "Use zero1, or 1f1b.")


def device_multiplies(q: Question) -> PlanError | None:
    device, compute = q.cluster.device, q.plan.precision.compute
    if not device.peaks or device.peak(compute) is not None:
        return None
    able = [name for name in ("bf16", "fp16", "tf32", "fp32") if device.peak(name)]
    problem = f"{compute} needs matrix units this device ({device}) does not have"
    return PlanError("precision", problem, f"{' and '.join(able[:2])} run on it.")


def flash_needs_half(q: Question) -> PlanError | None:
    if q.plan.attention != "flash" or q.plan.precision.work != "float32":
        return None
    problem = f"the flash kernel works in 16 bits, and {q.plan.precision} does not"
    return PlanError("attention", problem, "Use bf16, or attention=auto.")


def flash_needs_device(q: Question) -> PlanError | None:
    if q.plan.attention != "flash" or not q.cluster.device.is_cpu:
        return None
    problem = f"the flash kernel does not run on {q.cluster.device}"
    return PlanError("attention", problem, "Use attention=auto.")


def offload_needs_device(q: Question) -> PlanError | None:
    if not q.plan.offload or not q.cluster.device.is_cpu:
        return None
    problem = f"{', '.join(q.plan.offload)} already in host memory on {q.cluster.device}"
    return PlanError("offload", problem, "Leave it out.")


def ceiling_below_device(q: Question) -> PlanError | None:
    ceiling, whole = q.plan.memory_bytes, q.cluster.memory_bytes_per_device
    if ceiling is None or whole is None or ceiling <= whole:
        return None
    problem = f"a ceiling of {ceiling / GIB:.0f} GiB on a device that has {whole / GIB:.0f}"
    return PlanError("memory", problem, "Lower it, or leave it out.")


def of_plan(find: Callable[[Plan], PlanError | None]) -> Callable[[Question], PlanError | None]:
    """A rule that holds whatever the model and the machine."""
    return lambda question: find(question.plan)


RULES = (
    Rule("tensor ways divide the heads", heads_divide),
    Rule("tensor ways divide the key-value heads", key_heads_divide),
    Rule("tensor ways divide every width they cut", widths_divide),
    Rule("tensor ways have something to cut", something_to_cut),
    Rule("tensor ways slice the sequence", tokens_divide_by_tensor),
    Rule("context ways slice the sequence", context_divides),
    Rule("context ways need attention", context_needs_attention),
    Rule("every stage has a block", stages_have_blocks),
    Rule("micro-batches fill the stages", of_plan(passes_fill_stages)),
    Rule("interleaving works in whole rounds", of_plan(interleaving_turns)),
    Rule("virtual stages need a pipeline", of_plan(virtual_needs_pipeline)),
    Rule("zero-bubble keeps its parameters", of_plan(zero_bubble_keeps_parameters)),
    Rule("zero-bubble runs again twice", of_plan(zero_bubble_runs_again_twice)),
    Rule("zero-bubble splits what it sees", of_plan(zero_bubble_splits_what_it_sees)),
    Rule("a folded pipeline's ends share nothing sliced", folded_ends_share_nothing),
    Rule("the device multiplies in that type", device_multiplies),
    Rule("flash attention works in 16 bits", flash_needs_half),
    Rule("flash attention needs a device", flash_needs_device),
    Rule("compression needs whole copies", of_plan(compression_needs_copies)),
    Rule("compression needs whole matrices", of_plan(compression_needs_whole_matrices)),
    Rule("kernels need one rank", of_plan(kernels_need_one_rank)),
    Rule("powersgd needs a steady scale", of_plan(factors_need_a_steady_scale)),
    Rule("adafactor needs whole matrices", of_plan(adafactor_needs_whole_matrices)),
    Rule("offloading needs a device", offload_needs_device),
    Rule("parameters leave in slices", of_plan(parameters_leave_in_slices)),
    Rule("the ceiling is below the device", ceiling_below_device),
)
