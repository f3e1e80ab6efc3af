"""The time forecast of a step, by cause, on the slowest rank.

Each rung hides what it really hides. Block-wise gathering runs ahead of the work and reductions one
block behind it, so a pass exposes its first gather, its last reduction and, block by block, what is
longer than the work beside it; gathering further ahead moves no bytes faster. With nothing gathered
ahead in backward, a gather queues behind the reduction before it and both are exposed. Replicated
gradients travel while the last backward pass goes on, but for the last bucket. Tensor-parallel
collectives stand between products that need them: nothing hides those. What is hidden still costs:
it takes memory bandwidth and processors from the work beside it (`INTERFERENCE`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log, sqrt

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.plan.layout import COPIES, EXPERT_COPIES, EXPERT_SLICES, SLICES
from stepladder.plan.options import Compress
from stepladder.planner.legality import settle_unchecked
from stepladder.planner.memory.saved_activations import block_shares, mean_bytes
from stepladder.planner.pipeline_stages import (
    Stage,
    bubble_share,
    rank_parameters,
    stages_of,
    trained_parameters,
)
from stepladder.planner.training_software import OURS, Software
from stepladder.record import Calibration, Time
from stepladder.workload import Facts, MatmulFacts

from .collective_time import network_of
from .device_speed import speed_of
from .micro_batch_time import (
    MicroBatchTime,
    Setting,
    message_bytes,
    setting_of,
    stage_micro_batch,
    update_delay_seconds,
)
from .orthogonalise_time import orthogonalise_seconds

INTERFERENCE = 0.2  # of hidden communication, by which the work beside it slows down
LAST_BUCKET = 0.1  # of replicated gradients that leave when nothing is left to compute
NORM_IN_HALVES = 5  # times a gradient is read or written for a norm that is added up in halves
STRAGGLING = 0.01  # spread of one node's step; all wait for the slowest of N, σ·√(2 ln N) late
HOST_MEMORY_BYTES_PER_SECOND = 100e9  # of one node, for an optimizer that runs on the host
HOST_LINK_BYTES_PER_SECOND = 25e9  # where the device table has no figure


@dataclass(frozen=True, slots=True)
class DataCommunication:
    """Seconds of communication along the data axes in one step."""

    exposed: float = 0.0
    hidden: float = 0.0

    @property
    def cost(self) -> float:
        return self.exposed + INTERFERENCE * self.hidden


def forecast_time(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    software: Software = OURS,
) -> Time | None:
    """Time by cause for a settled plan; None on a device whose speed is unknown."""
    speed = speed_of(cluster.device, plan.precision, calibration)
    speed = replace(
        speed,
        matrix=speed.matrix * software.narrower,
        launch_seconds=speed.launch_seconds * software.host_factor,
    )
    if software.attention_flops_per_second:
        speed = replace(speed, attention=software.attention_flops_per_second)
    settled, network = settle_unchecked(plan, cluster), network_of(cluster, calibration)
    setting = setting_of(facts, settled, speed, network, software)
    time = step_time(facts, setting, cluster)
    factor = calibration.correction(plan.precision.compute) if calibration else 1.0
    factor *= 1 + 1 / plan.recheck if plan.recheck else 1  # one step in so many is taken twice
    return time.times(factor) if speed.known else None


def step_time(facts: Facts, setting: Setting, cluster: Cluster) -> Time:
    plan = setting.plan
    cuts = setting.sizes.software.cuts
    stages = stages_of(facts, plan.layout, plan.schedule, cuts)
    once = {
        id(stage): stage_micro_batch(facts, stage, setting) for stage in distinct_stages(stages)
    }
    times = [once[id(stage)] for stage in stages]
    slowest = max(range(len(stages)), key=lambda index: times[index].seconds)
    stage, one, count = stages[slowest], times[slowest], setting.sizes.micro_batches
    mean = sum(each.seconds for each in times) / len(times)
    data = data_communication(facts, stage, one, setting)
    handed = pipeline_send_seconds(stage, setting) * count
    host_link = cluster.device.host_bytes_per_second or HOST_LINK_BYTES_PER_SECOND
    moved = offload_seconds(stage, one, setting, host_link)
    update = optimizer_seconds(facts, stage, setting, cluster, host_link)
    time = Time(
        matrix=one.work.matrix * count,
        attention=one.work.attention * count,
        memory_bound=one.work.memory_bound * count,
        communication=one.communication * count + data.cost + handed + moved,
        bubble=bubble_share(plan.schedule, plan.layout.pipeline) * mean,
        optimizer=update,
        host=one.host * count + update_delay_seconds(stage, one, update, setting),
    )
    late = straggler_share(plan, cluster) * time.step_seconds
    return Time(**{**time.by_cause(), "communication": time.communication + late})


def distinct_stages(stages: tuple[Stage, ...]) -> list[Stage]:
    """Each stage that differs from the others, once."""
    return list({id(stage): stage for stage in stages}.values())


def straggler_share(plan: Plan, cluster: Cluster) -> float:
    nodes = ceil(plan.layout.num_ranks / cluster.devices_per_node)
    return STRAGGLING * sqrt(2 * log(nodes)) if nodes > 1 else 0.0


def data_communication(
    facts: Facts, stage: Stage, one: MicroBatchTime, setting: Setting
) -> DataCommunication:
    if setting.sizes.wrapped:
        return sharded_communication(stage, one, setting)
    return replicated_communication(facts, stage, one, setting)


def sharded_communication(stage: Stage, one: MicroBatchTime, setting: Setting) -> DataCommunication:
    """Parameters gathered before use and gradients reduced after it, block by block.

    Gradients leave after every pass. Parameters come for every pass, and under ZeRO 3 for backward
    once more; ZeRO 2 keeps what it gathered for the batch's first pass until its last is done.
    """
    sizes, layout, count = setting.sizes, setting.plan.layout, stage.num_blocks
    shard = setting.network.group(layout, *SLICES)
    copies = setting.network.group(layout, "replicate")

    def reduce(parameters: float) -> float:
        slice_bytes = parameters * sizes.reduce / sizes.shard
        return shard.gather(parameters * sizes.reduce) + copies.all_reduce(slice_bytes)

    experts = sum(part.expert_parameters * n for part, n in stage.blocks) / max(count, 1)
    apart = experts if sizes.experts > 1 else 0.0
    every = sum(rank_parameters(p, sizes.tensor) * n for p, n in stage.blocks) / max(count, 1)
    learning = sum(trained_parameters(p, sizes.tensor) * n for p, n in stage.blocks) / max(count, 1)
    block, learns = every - apart, max(learning - apart, 0.0)
    ends = sum(rank_parameters(part, sizes.tensor) for part in stage.ends)
    learning_ends = sum(trained_parameters(part, sizes.tensor) for part in stage.ends)
    gather, leave = shard.gather(block * sizes.gather), reduce(learns)
    if sizes.experts > 1:  # over fewer ranks than the rest of the block
        few, own = setting.network.group(layout, *EXPERT_SLICES), experts / sizes.experts
        gather += few.gather(own * sizes.gather)
        leave += few.gather(own * sizes.reduce)
        leave += copies.all_reduce(own * sizes.reduce / few.ways)
    gather_ends, leave_ends = shard.gather(ends * sizes.gather), reduce(learning_ends)
    gathers = sizes.micro_batches if sizes.zero == 3 else 1
    dropped = dropped_blocks(count, setting)
    came = gather_ends + gather + count * max(gather - one.block_forward, 0.0)
    beside = one.block_backward if sizes.settled.gathered_ahead else 0.0
    left = leave_ends + leave + dropped * max(gather + leave - beside, 0.0)
    left += (count - dropped) * max(leave - one.block_backward, 0.0)
    every_gather = gather_ends + count * gather
    every_leave = leave_ends + count * leave + dropped * gather
    hidden = gathers * max(every_gather - came, 0.0)
    hidden += sizes.micro_batches * max(every_leave - left, 0.0)
    return DataCommunication(gathers * came + sizes.micro_batches * left, hidden)


def dropped_blocks(count: int, setting: Setting) -> int:
    """Blocks that are gathered once more for backward; one that stays by default is counted too."""
    if setting.sizes.zero != 3:
        return 0
    return max(count - (setting.settled.kept_gathered - 1), 0)


def replicated_communication(
    facts: Facts, stage: Stage, one: MicroBatchTime, setting: Setting
) -> DataCommunication:
    """Gradients all-reduced during the last backward; under ZeRO 1 parameters gathered after."""
    sizes, layout = setting.sizes, setting.plan.layout
    held = stage.trained(sizes.tensor, facts.tied_parameters)
    group = setting.network.group(layout, *COPIES)
    experts = sum(part.expert_parameters * count for part, count in stage.blocks)
    apart = experts if sizes.experts > 1 else 0.0  # reduced over fewer ranks than the rest
    size = (held - apart) * sizes.reduce * compressed_share(setting.plan.compress, stage)
    owners = setting.network.group(layout, *SLICES)
    out = owners.gather(held * sizes.gather) if sizes.zero == 1 else 0.0
    if sizes.software.scatters and sizes.zero == 1:
        copies = setting.network.group(layout, "replicate")
        total = owners.gather(size) + copies.all_reduce(size / sizes.shard)
        ahead = one.block_forward * stage.num_blocks * passes_beside(setting)
        out_hidden = (1 - LAST_BUCKET) * min(out, ahead)
    else:
        total, out_hidden = group.all_reduce(size), 0.0
        few = setting.network.group(layout, *EXPERT_COPIES)
        total += few.all_reduce(apart / sizes.experts * sizes.reduce) if apart else 0.0
    # Slices are added up over ranks when the last one's backward is done.
    behind = one.block_backward * stage.num_blocks * passes_beside(setting)
    hideable = 0.0 if sizes.settled.slices else min(total, behind)
    exposed = total - hideable + LAST_BUCKET * hideable
    return DataCommunication(exposed + out - out_hidden, total - exposed + out_hidden)


def passes_beside(setting: Setting) -> float:
    """Passes of a rank beside which its gradients leave, or its parameters return.

    Interleaved stretches end one after another: the last micro-batches of all but the first of them
    pass while the gradients of those before travel.
    """
    plan, software = setting.plan, setting.sizes.software
    if plan.schedule.kind != "interleaved" or not software.scatters:
        return 1.0
    virtual = plan.schedule.virtual
    later = plan.layout.pipeline * (virtual - 1) / virtual
    return max(min(later, float(setting.sizes.micro_batches)), 1.0)


def compressed_share(compress: Compress, stage: Stage) -> float:
    """Bytes that travel, as a share of the gradients in their own type."""
    if compress.kind == "none" or not stage.blocks:
        return 1.0
    if compress.kind != "powersgd":
        return 0.5
    matrices = [matrix for part, _ in stage.blocks for matrix in part.matmuls]
    whole = sum(m.weights for m in matrices)
    factors = sum(factor_elements(m, compress.rank) for m in matrices)
    return min(factors / whole, 1.0) if whole else 1.0


def factor_elements(matrix: MatmulFacts, rank: int) -> int:
    """Elements of a gradient's two factors; the experts' gradients are one matrix, a row each."""
    if matrix.experts == 1:
        return rank * (matrix.inner + matrix.columns)
    return min(rank * (matrix.experts + matrix.inner * matrix.columns), matrix.weights)


def pipeline_send_seconds(stage: Stage, setting: Setting) -> float:
    """A micro-batch to the next stage, and its gradient back."""
    if setting.plan.layout.pipeline == 1:
        return 0.0
    group = setting.network.group(setting.plan.layout, "pipeline")
    return 2 * stage.num_chunks * group.send(message_bytes(stage, setting))


def local_parameters(facts: Facts, stage: Stage, setting: Setting) -> float:
    """Parameters that this rank updates."""
    sizes = setting.sizes
    trained = stage.trained(sizes.tensor, facts.tied_parameters)
    return (trained - (0.0 if sizes.zero else stage.on_other_ranks(sizes.experts))) / sizes.shard


def optimizer_seconds(
    facts: Facts, stage: Stage, setting: Setting, cluster: Cluster, host_link: float
) -> float:
    """Seconds to read and write what clipping and the update touch."""
    local = local_parameters(facts, stage, setting)
    sizes = setting.sizes
    clipping = 3 * sizes.gradient if setting.plan.optimizer.clip is not None else 0
    if sizes.settled.slices:  # the norm in halves: squares are written, then read and added
        clipping += NORM_IN_HALVES * sizes.gradient
    touched = 2 * sizes.parameter + sizes.gradient + 2 * sizes.state + clipping
    if "optimizer" not in setting.plan.offload:
        moved = local * touched / (setting.speed.update_bandwidth or setting.speed.bandwidth)
        return moved + orthogonalise_seconds(stage, setting)
    rate = HOST_MEMORY_BYTES_PER_SECOND / cluster.devices_per_node
    moved = local * (touched / rate + (sizes.parameter + sizes.gradient) / host_link)
    return moved + orthogonalise_seconds(stage, setting)


def offload_seconds(stage: Stage, one: MicroBatchTime, setting: Setting, host_link: float) -> float:
    """Seconds of offload traffic that the work beside it does not hide."""
    sizes, plan = setting.sizes, setting.plan
    size = 0.0
    if setting.settled.offloads_parameters:
        held = stage.parameters(sizes.tensor) / sizes.shard
        size += 3 * held * sizes.parameter  # in for forward, in for backward, gradients out
    if setting.settled.offloads_activations:
        for part, count in stage.blocks:
            depths = block_shares(part, plan.recompute, stage.num_blocks, sizes)
            size += 2 * mean_bytes(part, depths, sizes) * count
    seconds = size / host_link
    hidden = min(seconds, one.seconds)
    return (seconds - hidden + INTERFERENCE * hidden) * sizes.micro_batches
