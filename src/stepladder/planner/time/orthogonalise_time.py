"""The time of Newton-Schulz, which muon runs on whole matrices: products, and the exchange."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan.layout import AXES
from stepladder.planner.pipeline_stages import Stage

from .micro_batch_time import Setting

STAGE = tuple(axis for axis in AXES if axis != "pipeline")  # ranks with parts of the same matrices


@dataclass(frozen=True, slots=True)
class OrthogonaliseRates:
    """How fast a rank multiplies and sends."""

    flops_per_second: float
    bytes_per_second: float  # to and from other ranks
    latency: float  # seconds of a collective without bytes

    def seconds(self, flops: float, num_bytes: float, collectives: int) -> float:
        """Of the rank with most to do."""
        sent = num_bytes / self.bytes_per_second + collectives * self.latency
        return flops / self.flops_per_second + sent


def newton_schulz_flops(rows: float, columns: float, steps: int) -> float:
    """Of one matrix: an iteration squares the smaller side, squares that, and multiplies back."""
    small, large = sorted((rows, columns))
    return steps * (4.0 * small * small * large + 2.0 * small**3)


def orthogonalise_seconds(stage: Stage, setting: Setting) -> float:
    """Of a stage's matrices, shared among its ranks in the fastest way.

    The owners of shared_work.py, as if work could be cut evenly: no rank has less than a matrix.
    """
    how, sizes = setting.plan.optimizer, setting.sizes
    if how.name != "muon" or not stage.matrices(1):
        return 0.0
    flops = [
        (newton_schulz_flops(m.columns, m.inner, how.ns_steps), m.experts * count)
        for part, count in stage.blocks
        for m in part.matmuls
    ]
    total, largest = sum(f * n for f, n in flops), max((f for f, _ in flops), default=0.0)
    group = setting.network.group(setting.plan.layout, *STAGE)
    rates = OrthogonaliseRates(setting.speed.wide, group.bytes_per_second, group.ring_latency)
    num_bytes, cut = stage.matrices(1) * sizes.work, sizes.shard * sizes.tensor
    mine, away = num_bytes / cut, 1 - 1 / cut  # what a rank holds; the share of it that travels
    shared = [rates.seconds(total, num_bytes * away, int(cut > 1))]
    if cut > 1:
        shared.append(rates.seconds(max(total / cut, largest), 2 * mine * away, 2))
    if group.ways > cut:
        owned = num_bytes / group.ways
        shared.append(rates.seconds(max(total / group.ways, largest), mine + owned, 2))
    return min(shared)
