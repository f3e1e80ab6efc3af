"""Single changes to a plan, its workload or its cluster by which a device holds less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stepladder.hardware import Cluster
from stepladder.plan import BF16, BatchSplit, Plan, Recompute
from stepladder.plan.precision import BF16_MASTER, BF16_PURE, FP16
from stepladder.plan.shared_constants import MASTER_STATE
from stepladder.workload import Facts

from .candidates import DEPTHS, powers

MOST_DEVICES = 1024
SHORTEST = 128  # tokens of a sequence that are still advised
FIELDS = (
    "batch",
    "recompute",
    "layout",
    "zero",
    "precision",
    "offload",
    "state",
)  # that a change may set
Shorter = Callable[[int], Facts]  # the same model on sequences of that length


@dataclass(frozen=True, slots=True)
class Case:
    """A plan for a workload on a cluster."""

    facts: Facts
    plan: Plan
    cluster: Cluster

    @property
    def samples(self) -> int:
        return self.plan.batch.sequences or 1


def smaller_micro_batches(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    batch = plan.batch
    share = (batch.sequences or 1) // plan.layout.data_ranks
    for micro in reversed(powers(max((batch.micro or 1) - 1, 0))):
        if share % micro == 0 and not plan.exact.slices:
            yield replace(plan, batch=BatchSplit(batch.sequences, micro, share // micro))


def deeper_recomputation(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    deeper = {"none": ("selective", "blocks"), "selective": ("blocks",)}
    for kind in deeper.get(plan.recompute.kind, ()):
        yield replace(plan, recompute=Recompute.parse(kind))


def more_sharding(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    """Slices of the state over the ranks that hold whole copies of it."""
    layout = plan.layout
    ways = layout.shard if plan.zero else layout.replicate
    if ways > 1:
        sliced = layout if plan.zero else replace(layout, replicate=1, shard=ways)
        for stage in range(plan.zero + 1, 4):
            yield replace(plan, layout=sliced, zero=stage)  # type: ignore[arg-type]


def fewer_bits(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    if plan.precision.work == "float32":
        narrow = BF16 if cluster.device.peak("bf16") or cluster.device.is_cpu else FP16
        yield replace(plan, precision=narrow)
        return
    mixed = plan.precision.work == "bfloat16" and plan.precision.store == "float32"
    if mixed and not plan.exact.slices:
        yield replace(plan, precision=BF16_PURE)


def fewer_state_bytes(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    """Masters and moments in fewer bytes a parameter: first those that change no bit of them."""
    if plan.exact.slices or "optimizer" in plan.offload:
        return
    mixed = plan.precision == BF16
    precision = BF16_MASTER if mixed else plan.precision
    for state in sorted(MASTER_STATE, reverse=True):
        if precision.masters and state < plan.state:
            yield replace(plan, precision=precision, state=state)


def more_offloading(plan: Plan, cluster: Cluster) -> Iterator[Plan]:
    if cluster.device.is_cpu or plan.exact.slices:
        return
    for further in (("optimizer",), ("activations",), ("optimizer", "activations")):
        if not set(further) & set(plan.offload):
            yield replace(plan, offload=(*plan.offload, *further))


CHANGES: dict[str, Callable[[Plan, Cluster], Iterator[Plan]]] = {
    "accumulation": smaller_micro_batches,
    "recomputation": deeper_recomputation,
    "sharding": more_sharding,
    "state": fewer_state_bytes,
    "precision": fewer_bits,
    "offload": more_offloading,
}


def shorter_sequences(start: Case, shorter: Shorter) -> Iterator[Case]:
    """Half as long, and again, with as many sequences more: the same tokens in a step."""
    tokens, batch = start.facts.tokens // 2, start.plan.batch
    times = 2
    while tokens >= SHORTEST:
        sequences = None if batch.sequences is None else batch.sequences * times
        cut = BatchSplit(sequences, batch.micro, None)
        plan = replace(start.plan, batch=cut).settle(start.cluster.num_devices)
        yield replace(start, facts=shorter(tokens), plan=plan)
        tokens, times = tokens // 2, 2 * times


def more_devices(start: Case) -> Iterator[Case]:
    """The same batch with the state in slices over more devices: twice as many, and again.

    Then also with the least that a device can compute at once.
    """
    plan, cluster = start.plan, start.cluster
    layout, batch = plan.layout, plan.batch
    devices, copies = cluster.num_devices, layout.replicate * layout.shard
    if cluster.device.is_cpu:
        return
    while 2 * devices <= MOST_DEVICES:
        devices, copies = 2 * devices, 2 * copies
        share, rest = divmod(batch.sequences or 1, copies * layout.context)
        if rest or not share:
            return
        spread = replace(layout, replicate=1, shard=copies)
        micro = min(batch.micro or share, share)
        if share % micro:
            return
        cut = BatchSplit(batch.sequences, micro, share // micro)
        wide = replace(plan, layout=spread, zero=3, batch=cut)
        leanest = replace(wide, batch=BatchSplit(batch.sequences, 1, share), recompute=DEPTHS[-1])
        for each in (wide, leanest):
            yield replace(start, plan=each, cluster=widened(cluster, devices))


def widened(cluster: Cluster, devices: int) -> Cluster:
    """The cluster with so many devices: full nodes first, then more of them."""
    most = max(cluster.device.devices_per_node, cluster.devices_per_node)
    if devices <= most and cluster.num_nodes == 1:
        return replace(cluster, devices_per_node=devices)
    each = cluster.devices_per_node if cluster.num_nodes > 1 else most
    return replace(cluster, num_nodes=max(1, devices // each), devices_per_node=each)


def thinned(plans: list[Plan | None], kind: str) -> list[Plan | None]:
    """Fewer sizes of micro-batches: as it is, a quarter of it, one; and of state, the first."""
    if kind == "state":
        return plans[:2]
    if kind != "accumulation" or len(plans) <= 3:
        return plans
    return [plans[0], plans[2], plans[-1]]


def merged(plan: Plan, changed: list[Plan]) -> Plan:
    """The plan with each change: fields that differ from it."""
    fields: dict[str, Any] = {}
    for other in changed:
        for name in FIELDS:
            if getattr(other, name) != getattr(plan, name):
                fields[name] = getattr(other, name)
    return replace(plan, **fields)
