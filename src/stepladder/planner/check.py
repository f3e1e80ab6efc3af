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
from stepladder.plan import REST, Plan
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
    for part in q.facts.parts:
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
    if layout.tensor == 1 or tokens % ways == 0 or tokens % layout.context:
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


def passes_fill_stages(q: Question) -> PlanError | None:
    stages, passes = q.plan.layout.pipeline, q.plan.batch.passes
    if stages == 1 or passes is None or q.plan.schedule.kind == "gpipe" or passes >= stages:
        return None
    problem = f"{passes} micro-batches cannot fill {stages} stages with {q.plan.schedule}"
    ways = q.plan.layout.data_ways * (q.plan.batch.micro or 1)
    remedy = f"Use a batch of {ways * stages} or more, or at most {passes} stages."
    return PlanError("batch.accumulate", problem, remedy)


def interleaving_turns(q: Question) -> PlanError | None:
    stages, passes = q.plan.layout.pipeline, q.plan.batch.passes
    if q.plan.schedule.kind != "interleaved" or stages == 1 or not passes or passes % stages == 0:
        return None
    problem = (
        f"interleaved works in rounds of {stages}; {passes} micro-batches are not whole rounds"
    )
    return PlanError("schedule", problem, "Use 1f1b, or a batch that makes whole rounds.")


def virtual_needs_pipeline(q: Question) -> PlanError | None:
    if q.plan.schedule.virtual == 1 or q.plan.layout.pipeline > 1:
        return None
    problem = f"{q.plan.schedule} gives each rank several stages, and there is no pipeline"
    return PlanError("schedule", problem, "Add pipeline=2, or leave it out.")


def zero_bubble_keeps_parameters(q: Question) -> PlanError | None:
    if q.plan.schedule.kind != "zero-bubble" or q.plan.layout.pipeline == 1 or q.plan.zero != 3:
        return None
    problem = "zero-bubble splits backward, and zero3 drops parameters between its halves"
    return PlanError("schedule", f"{problem}: gradients come out wrong", "Use 1f1b, or zero1.")


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


def compression_needs_copies(q: Question) -> PlanError | None:
    if q.plan.compress.kind == "none" or (q.plan.zero == 0 and q.plan.layout.replicate > 1):
        return None
    problem = f"{q.plan.compress} shrinks gradients that whole copies exchange, and there are none"
    return PlanError("compress", problem, "Use ddp with several ranks, or compress=none.")


def offload_needs_device(q: Question) -> PlanError | None:
    if not q.plan.offload or not q.cluster.device.is_cpu:
        return None
    problem = f"{', '.join(q.plan.offload)} already in host memory on {q.cluster.device}"
    return PlanError("offload", problem, "Leave it out.")


def parameters_leave_in_slices(q: Question) -> PlanError | None:
    if "parameters" not in q.plan.offload or q.plan.zero == 3:
        return None
    problem = "parameters can wait on the host only where each block gathers them before use"
    return PlanError("offload", problem, "Use zero3, or offload=optimizer.")


def ceiling_below_device(q: Question) -> PlanError | None:
    ceiling, whole = q.plan.memory_bytes, q.cluster.memory_bytes_per_device
    if ceiling is None or whole is None or ceiling <= whole:
        return None
    problem = f"a ceiling of {ceiling / GIB:.0f} GiB on a device that has {whole / GIB:.0f}"
    return PlanError("memory", problem, "Lower it, or leave it out.")


RULES = (
    Rule("tensor ways divide the heads", heads_divide),
    Rule("tensor ways divide the key-value heads", key_heads_divide),
    Rule("tensor ways divide every width they cut", widths_divide),
    Rule("tensor ways have something to cut", something_to_cut),
    Rule("tensor ways slice the sequence", tokens_divide_by_tensor),
    Rule("context ways slice the sequence", context_divides),
    Rule("context ways need attention", context_needs_attention),
    Rule("every stage has a block", stages_have_blocks),
    Rule("micro-batches fill the stages", passes_fill_stages),
    Rule("interleaving works in whole rounds", interleaving_turns),
    Rule("virtual stages need a pipeline", virtual_needs_pipeline),
    Rule("zero-bubble keeps its parameters", zero_bubble_keeps_parameters),
    Rule("the device multiplies in that type", device_multiplies),
    Rule("flash attention works in 16 bits", flash_needs_half),
    Rule("flash attention needs a device", flash_needs_device),
    Rule("compression needs whole copies", compression_needs_copies),
    Rule("offloading needs a device", offload_needs_device),
    Rule("parameters leave in slices", parameters_leave_in_slices),
    Rule("the ceiling is below the device", ceiling_below_device),
)
