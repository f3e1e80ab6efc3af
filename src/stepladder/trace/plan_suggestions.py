"""Suggestions: changes of a plan that the planner forecasts to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepladder.hardware import Cluster
from stepladder.plan import PRECISIONS, BatchSplit, Layout, Plan, Recompute
from stepladder.plan.options import Compress
from stepladder.planner import forecast, plan_problems
from stepladder.record import Calibration
from stepladder.workload import Facts

WORTHWHILE = 1.03  # times faster; less is within the forecast's error
LOWER_PRECISIONS = {"fp32": ("tf32", "bf16"), "tf32": ("bf16",), "bf16": ("fp8",), "fp16": ("fp8",)}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change of the plan, and its forecast gain."""

    words: str  # the plan's shorthand for the change
    gain: float  # times faster


@dataclass(frozen=True, slots=True)
class SuggestionContext:
    """The model, cluster and calibration to forecast with; `unknown`: why they are missing."""

    facts: Facts | None = None
    cluster: Cluster | None = None
    calibration: Calibration | None = None
    unknown: str = ""

    def suggestions(self, plan: Plan) -> list[Suggestion]:
        """Legal changes that fit in memory and are worthwhile, the best first."""
        if self.facts is None or self.cluster is None:
            return []
        now = self._seconds(plan)
        if now is None:
            return []
        found = []
        for words, changed in changes(plan, self.cluster):
            then = self._seconds(changed)
            if then is not None and now / then > WORTHWHILE:
                found.append(Suggestion(words, now / then))
        return sorted(found, key=lambda suggestion: -suggestion.gain)

    def _seconds(self, plan: Plan) -> float | None:
        assert self.facts is not None and self.cluster is not None
        if plan_problems(self.facts, plan, self.cluster):
            return None
        found = forecast(self.facts, plan, self.cluster, self.calibration)
        return found.time.step_seconds if found.fits and found.time else None


def changes(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """Yield plans with one change each, and the plan's shorthand for the change."""
    for find in CHANGES:
        yield from find(plan, cluster)


def lower_precision(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    for name in LOWER_PRECISIONS.get(plan.precision.name, ()):
        yield name, replace(plan, precision=PRECISIONS[name])


def switches(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    if cluster.device.is_cpu:
        return
    if not plan.compile:
        yield "compile=on", replace(plan, compile=True)
    if not plan.kernels:
        yield "kernels=on", replace(plan, kernels=True)
    if not plan.graphs:
        yield "graphs=on", replace(plan, graphs=True)


def larger_micro_batches(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """The same batch in fewer, larger micro-batches."""
    batch = plan.settle(cluster.num_devices).batch
    if batch.micro and batch.micro_batches and batch.micro_batches > 1:
        larger = BatchSplit(batch.sequences, 2 * batch.micro)
        yield f"micro={larger.micro}", replace(plan, batch=larger)


def less_recomputation(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    kinds = {"blocks": ("selective", "none"), "selective": ("none",), "every": ("none",)}
    for kind in kinds.get(plan.recompute.kind, ()):
        yield f"recompute={kind}", replace(plan, recompute=Recompute.parse(kind))


def less_communication(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """Compressed gradients, a lower ZeRO stage, or sharding within a node."""
    layout = plan.layout
    if layout.replicate > 1 and not plan.zero and plan.compress == Compress():
        yield "compress=bf16", replace(plan, compress=Compress("bf16"))
    if plan.zero == 3:
        yield "zero2", replace(plan, zero=2, gathered=None)
    inside = cluster.devices_per_node
    if plan.zero and layout.shard > inside and layout.shard % inside == 0:
        hybrid: Layout = replace(
            layout, shard=inside, replicate=layout.replicate * layout.shard // inside
        )
        words = f"hybrid sharding (shard={hybrid.shard} replicate={hybrid.replicate})"
        yield words, replace(plan, layout=hybrid)


CHANGES: tuple[Callable[[Plan, Cluster], Iterator[tuple[str, Plan]]], ...] = (
    lower_precision,
    switches,
    larger_micro_batches,
    less_recomputation,
    less_communication,
)
