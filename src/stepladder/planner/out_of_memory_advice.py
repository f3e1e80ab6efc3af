"""Out-of-memory errors: the largest owner, and the cheapest changes that would do.

Where the changes can be forecast, each is named with the memory and time it would take
(remedies.py), and where the step itself can be rehearsed, with what it would free; otherwise with
what it would save, by arithmetic on what was measured. Activations and logits go with the
micro-batch; recomputation leaves a known share of a block's activations;
slices of the training state are divisions. The shares are those of the transformer blocks people
train, counted in numbers a token: of 22 hidden widths that a Llama block keeps, 12 are products and
attention and one is its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stepladder.errors import OutOfMemory
from stepladder.plan import BF16, Plan
from stepladder.record import Memory, Rehearsal
from stepladder.record.rehearsal import RehearsedChange

from .remedies import Remedy

GIB = 2**30
CHEAP_SHARE = 12 / 22  # of a block's activations: what a selective block keeps
INPUT_SHARE = 1 / 22  # what a recomputed block keeps
FEW_BLOCKS = 10  # where the number of blocks is not known
MOST = 4  # ways in one message
ALONE_SHARE = 0.8  # of a device: a step that is rehearsed to need less was not alone there


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """A change to the plan that saves memory, and what it costs."""

    words: str  # as they stand in a plan
    saved_bytes: int
    cost: str
    rank: int  # the cheapest first

    def __str__(self) -> str:
        return f"{self.words} (saves {self.saved_bytes / GIB:.1f} GiB, {self.cost})"


def explain_out_of_memory(
    memory: Memory,
    limit_bytes: int,
    plan: Plan,
    *,
    num_blocks: int | None = None,
    remedies: Sequence[Remedy] = (),
    rehearsed: Rehearsal | None = None,
    changes: Sequence[RehearsedChange] = (),
) -> OutOfMemory:
    """The error to raise when a plan needs more than there is.

    Args:
        plan: what failed last, with the micro-batch that it came down to.
        remedies: that were forecast; none of them: savings are estimated.
        rehearsed: the step that failed; it names the moment and the module.
        changes: that were rehearsed too; of them the message tells first.
    """
    owner, owned = memory.largest_owner()
    ways = memory_savings(memory, plan, num_blocks=num_blocks)
    missing = memory.peak_bytes - limit_bytes
    where = f"Largest owner: {owner}, {owned / GIB:.1f} GiB"
    if rehearsed is not None:
        where = describe_peak(rehearsed, limit_bytes)
    others = held_by_others(rehearsed, limit_bytes)
    return OutOfMemory(
        "memory",
        f"this plan needs {memory.peak_bytes / GIB:.1f} GiB and the device has "
        f"{limit_bytes / GIB:.1f}. {where}",
        rehearsed_remedy(changes, remedies, others=others)
        or forecast_remedy(remedies)
        or remedy(ways, missing),
    )


def describe_peak(rehearsed: Rehearsal, limit_bytes: int) -> str:
    """Where the rehearsed step ends; and whether it is this step that needs too much."""
    where = f"Rehearsed, it ends in {rehearsed.at_peak()}"
    if not held_by_others(rehearsed, limit_bytes):
        return where
    alone = amount(rehearsed.reserved_bytes)
    return f"{where}. The step by itself needs {alone}: something else holds the rest"


def amount(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.3g} GiB" if num_bytes > GIB / 10 else f"{num_bytes / 2**20:.3g} MiB"


def held_by_others(rehearsed: Rehearsal | None, limit_bytes: int) -> bool:
    return rehearsed is not None and rehearsed.reserved_bytes < ALONE_SHARE * limit_bytes


def rehearsed_remedy(
    changes: Sequence[RehearsedChange], remedies: Sequence[Remedy], *, others: bool
) -> str:
    """What each rehearsed change frees, whether that is enough, and its cost as forecast.

    Args:
        others: something else holds memory, and how much nobody knows.
    """
    costs = {each.words: each.cost for each in remedies}
    said = []
    for change in changes:
        known = [f"frees {amount(change.freed_bytes)}"]
        known += [] if others else ["fits" if change.fits else "does not fit alone"]
        cost = costs.get(change.words)
        known += [f"{cost:.2f} × the time a token"] if cost else []
        said.append(f"{change.words} ({', '.join(known)})")
    return f"Cheapest ways down, rehearsed: {'; '.join(said)}." if said else ""


def forecast_remedy(remedies: Sequence[Remedy]) -> str:
    """The remedies that are forecast to fit, or nothing where none does."""
    fitting = [each for each in remedies if each.fits][:MOST]
    if not fitting:
        return ""
    return f"Forecast to fit, cheapest first: {'; '.join(map(str, fitting))}."


def remedy(ways: list[MemorySaving], missing_bytes: int) -> str:
    """The ways that save most for least, or what else is left to do."""
    if not ways:
        return "Nothing in the plan can give way: use a larger device, or a smaller model."
    shown = "; ".join(str(way) for way in ways[:MOST])
    alone = any(way.saved_bytes >= missing_bytes for way in ways[:MOST])
    together = "" if alone else f" None is enough alone: {missing_bytes / GIB:.1f} GiB are missing."
    return f"Cheapest ways down: {shown}.{together}"


def memory_savings(
    memory: Memory, plan: Plan, *, num_blocks: int | None = None
) -> list[MemorySaving]:
    """Every change to the plan that would save memory, the cheapest first."""
    found = [way for find in FINDERS for way in find(memory, plan)]
    found += more_recomputation(memory, plan, num_blocks or FEW_BLOCKS)
    worth = [way for way in found if way.saved_bytes * 100 > memory.peak_bytes]
    return sorted(worth, key=lambda way: (way.rank, -way.saved_bytes))


def smaller_micro_batch(memory: Memory, plan: Plan) -> Iterator[MemorySaving]:
    micro = plan.batch.micro or 1
    if micro > 1:
        half = micro // 2
        passing = memory.activations + memory.logits
        saved = passing * (micro - half) // micro
        slices = plan.exact.slices
        change = f"exact=ranks:{2 * slices}" if slices else f"micro={half}"
        yield MemorySaving(change, saved, "other bits" if slices else "free", 0)


def more_recomputation(memory: Memory, plan: Plan, num_blocks: int) -> Iterator[MemorySaving]:
    """Recomputation, measured from what the plan keeps now."""
    whole = min(INPUT_SHARE + 1 / num_blocks, 1.0)  # and the block that backward is at
    now = {"none": 1.0, "selective": CHEAP_SHARE}.get(plan.recompute.kind)
    if now is None:
        return
    if now > CHEAP_SHARE:
        saved = round(memory.activations * (1 - CHEAP_SHARE))
        yield MemorySaving("recompute=selective", saved, "costs a few percent of the time", 2)
    saved = round(memory.activations * (1 - whole / now))
    yield MemorySaving("recompute=blocks", saved, "costs about a third of the time", 3)


def more_sharding(memory: Memory, plan: Plan) -> Iterator[MemorySaving]:
    """Slicing the state over the ranks that hold whole copies of it."""
    ways = plan.layout.shard if plan.zero else plan.layout.replicate
    if ways <= 1:
        return
    sliced = {1: memory.optimizer, 2: memory.gradients, 3: memory.parameters}
    costs = {1: "free", 2: "free", 3: "costs half as much traffic again"}
    saved = 0
    for stage in range(plan.zero + 1, 4):
        saved += sliced[stage] * (ways - 1) // ways
        axis = "" if plan.zero else f" shard={ways}"
        yield MemorySaving(f"zero{stage}{axis}", saved, costs[stage], 1 if stage < 3 else 3)


def fewer_state_bytes(memory: Memory, plan: Plan) -> Iterator[MemorySaving]:
    """Of the bytes that a parameter takes now, those that another way of keeping state leaves."""
    mixed = plan.precision == BF16
    if plan.exact.slices or plan.optimizer.name not in ("adamw", "adam"):
        return
    if "optimizer" in plan.offload or not (mixed or plan.precision.masters):
        return
    if mixed:  # autocast's copies come and go with the activations
        cost = "weights and gradients in bf16 beside fp32 masters"
        yield MemorySaving("bf16-master state=14", memory.state_bytes // 8, cost, 4)
        return
    for state, cost in ((14, "free"), (10, "moments in 16 bits"), (7, "moments in 8 bits")):
        if state < plan.state:
            saved = memory.state_bytes * (plan.state - state) // plan.state
            yield MemorySaving(f"state={state}", saved, cost, 1 if state == 14 else 2)


def lower_precision(memory: Memory, plan: Plan) -> Iterator[MemorySaving]:
    if plan.precision.work == "float32":
        saved = (memory.activations + memory.logits - memory.parameters) // 2
        yield MemorySaving("bf16", saved, "faster, in fewer digits", 1)
    elif plan.precision.mixed and not plan.exact.slices:
        saved = memory.state_bytes // 2 + memory.working
        yield MemorySaving("bf16-pure", saved, "costs digits in the update", 5)


def more_offloading(memory: Memory, plan: Plan) -> Iterator[MemorySaving]:
    if plan.exact.slices:
        return
    if "activations" not in plan.offload:
        saved = memory.activations * 9 // 10  # the latest are still on their way
        yield MemorySaving("offload=activations", saved, "costs as the host link is slow", 4)
    if "optimizer" not in plan.offload:
        yield MemorySaving("offload=optimizer", memory.optimizer, "updates on the host", 4)


FINDERS: tuple[Callable[[Memory, Plan], Iterator[MemorySaving]], ...] = (
    smaller_micro_batch,
    more_sharding,
    fewer_state_bytes,
    lower_precision,
    more_offloading,
)
