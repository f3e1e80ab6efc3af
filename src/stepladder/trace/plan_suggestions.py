"""Changes of a plan that would make it faster, by the planner's own forecast of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepladder.hardware import Cluster
from stepladder.plan import PRECISIONS, Batch, Layout, Plan, Recompute
from stepladder.plan.options import Compress
from stepladder.planner import forecast, problems
from stepladder.record import Calibration
from stepladder.workload import Facts

WORTHWHILE = 1.03  # times faster; less is within what a forecast cannot tell
FEWER_BITS = {"fp32": ("tf32", "bf16"), "tf32": ("bf16",), "bf16": ("fp8",), "fp16": ("fp8",)}


@dataclass(frozen=True, slots=True)
class Offer:
    words: str  # in the plan's own
    gain: float  # times faster


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the planner is asked about; `unknown` says why it cannot answer."""

    facts: Facts | None = None
    cluster: Cluster | None = None
    calibration: Calibration | None = None
    unknown: str = ""

    def offers(self, plan: Plan) -> list[Offer]:
        """Legal changes that fit and are worth it, the best first."""
        if self.facts is None or self.cluster is None:
            return []
        now = self._seconds(plan)
        if now is None:
            return []
        found = []
        for words, changed in changes(plan, self.cluster):
            then = self._seconds(changed)
            if then is not None and now / then > WORTHWHILE:
                found.append(Offer(words, now / then))
        return sorted(found, key=lambda offer: -offer.gain)

    def _seconds(self, plan: Plan) -> float | None:
        assert self.facts is not None and self.cluster is not None
        if problems(self.facts, plan, self.cluster):
            return None
        said = forecast(self.facts, plan, self.cluster, self.calibration)
        return said.time.step_seconds if said.fits and said.time else None


def changes(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """One change at a time, each in the words that ask for it."""
    for find in FINDERS:
        yield from find(plan, cluster)


def fewer_bits(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    for name in FEWER_BITS.get(plan.precision.name, ()):
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


def larger_passes(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """The same batch in fewer passes."""
    batch = plan.settle(cluster.num_devices).batch
    if batch.micro and batch.passes and batch.passes > 1:
        larger = Batch(batch.sequences, 2 * batch.micro)
        yield f"micro={larger.micro}", replace(plan, batch=larger)


def no_recomputing(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    kinds = {"blocks": ("selective", "none"), "selective": ("none",), "every": ("none",)}
    for kind in kinds.get(plan.recompute.kind, ()):
        yield f"recompute={kind}", replace(plan, recompute=Recompute.parse(kind))


def less_talk(plan: Plan, cluster: Cluster) -> Iterator[tuple[str, Plan]]:
    """Gradients in fewer bits, state sliced less, slices inside a node."""
    layout = plan.layout
    if layout.replicate > 1 and not plan.zero and plan.compress == Compress():
        yield "compress=bf16", replace(plan, compress=Compress("bf16"))
    if plan.zero == 3:
        yield "zero2", replace(plan, zero=2)
    inside = cluster.devices_per_node
    if plan.zero and layout.shard > inside and layout.shard % inside == 0:
        hybrid: Layout = replace(
            layout, shard=inside, replicate=layout.replicate * layout.shard // inside
        )
        words = f"hybrid sharding (shard={hybrid.shard} replicate={hybrid.replicate})"
        yield words, replace(plan, layout=hybrid)


FINDERS: tuple[Callable[[Plan, Cluster], Iterator[tuple[str, Plan]]], ...] = (
    fewer_bits,
    switches,
    larger_passes,
    no_recomputing,
    less_talk,
)
