"""The time of one micro-batch on one rank: compute, exposed communication, and host delays."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import Plan, SettledPlan
from stepladder.planner.memory.byte_sizes import Sizes, per_rank, sizes_of
from stepladder.planner.memory.logits import logit_traffic_bytes
from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.memory.saved_activations import block_shares
from stepladder.planner.pipeline_stages import Stage, rank_parameters, trained_parameters
from stepladder.planner.training_software import Software
from stepladder.workload import Facts, Part

from .collective_time import Network
from .device_speed import Speed
from .expert_exchange import exchanges, row_bytes
from .host_time import LaunchCost, host_delay_seconds, part_launch_cost, update_launch_cost
from .part_time import Share, Work, attention_seconds, block_work, part_work

LaunchAndWork = tuple[float, float]  # seconds to launch some work, and of the work itself

UNHIDDEN = 0.4  # of chunked tensor-parallel communication: the first chunk, and interference


@dataclass(frozen=True, slots=True)
class Setting:
    """A plan on a cluster, as the formulas read it."""

    sizes: Sizes
    share: Share
    speed: Speed
    network: Network

    @property
    def settled(self) -> SettledPlan:
        return self.sizes.settled

    @property
    def plan(self) -> Plan:
        return self.settled.plan


@dataclass(frozen=True, slots=True)
class MicroBatchTime:
    """One micro-batch through one stage, forward and backward."""

    work: Work
    communication: float  # seconds of collectives between matmuls that wait for them
    block_forward: float  # mean seconds of a block with its communication: what hides a gather
    block_backward: float
    host: float  # seconds by which launching is slower than the device
    launch_seconds: float = 0.0  # seconds of the host, whether the device waits for them or not

    @property
    def seconds(self) -> float:
        return self.work.seconds + self.communication + self.host


def setting_of(
    facts: Facts, settled: SettledPlan, speed: Speed, network: Network, software: Software
) -> Setting:
    sizes = sizes_of(facts, settled, software)
    share = Share(
        sizes.samples,
        sizes.tensor,
        sizes.context,
        sizes.experts,
        sizes.compiled,
        sizes.casts,
        sizes.flash,
        sizes.channels_last,
        1 / sizes.micro_batches if software.casts_once else 1.0,
        software,
    )
    return Setting(sizes, share, speed, network)


def stage_micro_batch(facts: Facts, stage: Stage, setting: Setting) -> MicroBatchTime:
    """Add up the blocks and ends of a stage; the host runs ahead wherever the device is slower."""
    work, communication, forward, backward = Work(), 0.0, 0.0, 0.0
    there_and_back: list[
        tuple[LaunchAndWork, LaunchAndWork]
    ] = []  # forward's and backward's, in order
    for part, count in stage.blocks:
        depths = block_shares(part, setting.plan.recompute, stage.num_blocks, setting.sizes)
        block = block_work(part, setting.share, setting.speed, depths)
        carried = Work(memory_bound=parameter_copy_seconds(part, setting))
        ahead, back = communication_seconds(part, depths, setting)
        every = (block.forward + block.backward + block.recomputed + carried).times(count)
        there = (block.forward.seconds + ahead) * count
        home = every.seconds + (ahead + back) * count - there
        asked = part_launch_seconds(part, depths, setting).times(count)
        there_and_back.append(((asked.forward, there), (asked.backward, home)))
        work, communication = work + every, communication + (ahead + back) * count
        forward, backward = forward + there, backward + home
    for part in stage.ends:  # the exit after the blocks, the entry before them
        there, end = end_work(facts, part, part is stage.exit, setting)
        asked = part_launch_seconds(part, RecomputeShares(), setting)
        turns = (asked.forward, there), (asked.backward, end.seconds - there)
        there_and_back.insert(0 if part is stage.entry else len(there_and_back), turns)
        work += end
    homeward = [back for _, back in reversed(there_and_back)]
    host = host_seconds([*(ahead for ahead, _ in there_and_back), *homeward], setting)
    num_blocks = max(stage.num_blocks, 1)
    return MicroBatchTime(work, communication, forward / num_blocks, backward / num_blocks, *host)


def host_seconds(turns: list[LaunchAndWork], setting: Setting) -> tuple[float, float]:
    """By how much a micro-batch waits for the host, on average, and what is asked of the host.

    A host that is slower than the device is late by that in every pass. One that is faster is late
    only where the first pass begins: from then on it is ahead.
    """
    asked, micro_batches = sum(a for a, _ in turns), setting.sizes.micro_batches
    slower = max(asked - sum(w for _, w in turns), 0.0)
    return ((micro_batches - 1) * slower + host_delay_seconds(turns)) / micro_batches, asked


def end_work(facts: Facts, part: Part, is_exit: bool, setting: Setting) -> tuple[float, Work]:
    """Forward seconds and all work of the entry, or of the exit with the loss."""
    forward, backward = part_work(part, setting.share, setting.speed, wide=True)
    carried = Work(memory_bound=parameter_copy_seconds(part, setting))
    if not is_exit or not facts.vocab:
        return forward.seconds, forward + backward + carried
    traffic = logit_traffic_bytes(facts, setting.sizes) / setting.speed.bandwidth
    return forward.seconds, forward + backward + carried + Work(memory_bound=traffic)


def parameter_copy_seconds(part: Part, setting: Setting) -> float:
    """Time to copy a block's parameters and gradients about, which every micro-batch does.

    Wrapped: out of the gathered buffer (once or twice), and into the reduced one. Otherwise: cast,
    where autocast works, and the gradient added to the one that is kept.
    """
    sizes = setting.sizes
    gathers = 2 if sizes.zero == 3 else 1
    cast = sizes.parameter + sizes.work if sizes.casts else 0  # to fewer bits, or back
    if sizes.wrapped:
        per_parameter: float = gathers * 2 * sizes.gathered
        per_gradient: float = sizes.gathered + sizes.reduce
    else:
        per_parameter, per_gradient = 0.0, accumulate_bytes(sizes)
    moved = rank_parameters(part, sizes.tensor, sizes.experts) * (per_parameter + cast)
    moved += trained_parameters(part, sizes.tensor, sizes.experts) * (per_gradient + cast)
    return moved / setting.speed.bandwidth


def accumulate_bytes(sizes: Sizes) -> float:
    """Bytes moved to add up one parameter's gradients; the first micro-batch adds to nothing."""
    fresh = sizes.gradient if sizes.settled.slices else sizes.waiting or sizes.gradient
    if sizes.software.adds_inside:  # read, and written in place of what matmuls would write
        fresh = -sizes.work
    return (2 * sizes.gradient + fresh) * (sizes.micro_batches - 1) / sizes.micro_batches


def communication_seconds(
    part: Part, depths: RecomputeShares, setting: Setting
) -> tuple[float, float]:
    """Collectives inside one block, forward and backward: tensor and context parallelism's."""
    sizes, layout = setting.sizes, setting.plan.layout
    ahead = back = 0.0
    if sizes.tensor > 1:
        pairs = sum(matrix.cut == "inner" for matrix in part.matmuls)
        group = setting.network.group(layout, "tensor")
        one = group.gather(part.output * sizes.samples / sizes.context * sizes.work)
        # A gather before each cut pair and a reduction after it; backward mirrors both. A block
        # recomputed whole stops before its last reduction; a cheap one has kept its reductions.
        again = depths.whole * max(2 * pairs - 1, 0) + depths.cheap * pairs
        ahead, back = 2 * pairs * one, (2 * pairs + again) * one
        if sizes.software.hides_tensor:
            ahead, back = ahead * UNHIDDEN, back * UNHIDDEN
    if sizes.context > 1 and part.attention:
        keys = 2 * part.attention.kv_heads * part.attention.head_width * part.attention.length
        group = setting.network.group(layout, "context")
        one = group.gather(keys * sizes.samples / sizes.tensor * sizes.work)
        if sizes.software.hides_context:
            attend, _ = attention_seconds(part.attention, setting.share, setting.speed)
            one = max(one - attend, 0.0)
        ahead, back = ahead + one, back + (2 + depths.whole) * one
    if sizes.experts > 1 and part.expert_parameters:
        group = setting.network.group(layout, "experts")
        one, often = group.exchange(row_bytes(part, sizes)), exchanges(depths)
        ahead, back = ahead + often[0] * one, back + often[1] * one
    return ahead, back


def part_launch_seconds(part: Part, depths: RecomputeShares, setting: Setting) -> LaunchCost:
    """Seconds of the host to launch one micro-batch through a part."""
    sizes, speed = setting.sizes, setting.speed
    if setting.settled.records_graphs:  # recorded once: then two calls, whatever is inside
        return LaunchCost()
    asked = part_launch_cost(
        part, depths,
        autocast=sizes.casts, compiled=sizes.compiled,
        added=(sizes.micro_batches - 1) / sizes.micro_batches, factors=speed.launch_factors,
    )  # fmt: skip
    return asked.times(speed.launch_seconds)


def update_delay_seconds(
    stage: Stage, one: MicroBatchTime, update: float, setting: Setting
) -> float:
    """Seconds by which the step ends later because its update was launched late."""
    tensors = sum(part.tensors * count for part, count in stage.blocks)
    tensors += sum(part.tensors for part in stage.ends)
    asked = update_launch_cost(tensors, setting.speed.launch_factors) * setting.speed.launch_seconds
    device = one.work.seconds + one.communication + one.host
    return max(asked - update + (one.launch_seconds - device) * setting.sizes.micro_batches, 0.0)


def message_bytes(stage: Stage, setting: Setting) -> float:
    """Bytes that one stage sends to the next for one micro-batch."""
    widest = max((part.output for part, _ in stage.blocks), default=0.0)
    return widest * per_rank(setting.sizes) * setting.sizes.residual
