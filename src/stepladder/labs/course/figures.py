"""The figures that questions ask for, from the planner and the device table as they are."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from stepladder.errors import PlanError
from stepladder.hardware import Cluster, find_device
from stepladder.hardware.chips import find_chip
from stepladder.hardware.occupancy import Block, occupancy
from stepladder.plan import Plan, Schedule
from stepladder.plan.learning_rate import scale_rate
from stepladder.plan.refit import refit
from stepladder.planner import bubble_share, forecast, plan_problems
from stepladder.planner.time.collective_time import RankGroup
from stepladder.record import Forecast
from stepladder.workload import Facts, find_facts

GIB = 2**30
DAY = 86_400
SLOW_NETWORK = "16 nodes x 8 H100-80GB, 100 Gb/s"


def told(model: str, plan: str, cluster: str, sequence: int | None = None) -> Forecast:
    """The forecast of a plan, all three as one types them."""
    return forecast(facts(model, sequence), plan, cluster)


def facts(model: str, sequence: int | None = None) -> Facts:
    return find_facts(model) if sequence is None else find_facts(model, sequence=sequence)


def seconds(found: Forecast) -> float:
    """Of one step, on a device whose speed is known."""
    assert found.time is not None
    return found.time.step_seconds


def peak_flops(device: str, compute: str = "bf16") -> float:
    """Operations a second, of a device that can compute in that type."""
    peak = Cluster.parse(f"1 {device}").device.peak(compute)
    assert peak is not None
    return peak


def memory_rate(device: str) -> float:
    """Bytes a second of a device's own memory."""
    rate = Cluster.parse(f"1 {device}").device.bandwidth_bytes_per_second
    assert rate is not None
    return rate


def host_rate(device: str) -> float:
    """Bytes a second between a device and the host."""
    rate = Cluster.parse(f"1 {device}").device.host_bytes_per_second
    assert rate is not None
    return rate


def blocks(device: str, words: str) -> int:
    """Blocks of a kernel that fit one multiprocessor at once."""
    chip = find_chip(find_device(device))
    assert chip is not None
    return occupancy(Block.parse(words), chip.multiprocessor).blocks


def core_flops(device: str) -> float:
    """FLOPs a second of a chip's cores in fp32: a multiplication and an addition each clock."""
    found = find_device(device)
    chip = find_chip(found)
    assert chip is not None
    clock = chip.clock(found)
    assert clock is not None
    return 2 * chip.cores * clock


def balance(device: str) -> float:
    """The FLOPs per byte at which arithmetic and memory take equally long, in bf16."""
    return peak_flops(device) / memory_rate(device)


def sum_intensity(element_bytes: int) -> float:
    """The FLOPs per byte of a sum of two tensors: two are read, one is written."""
    return 1 / (3 * element_bytes)


def only_format(device: str, names: Sequence[str]) -> str:
    """The one of these formats that a device can compute in."""
    known = Cluster.parse(f"1 {device}").device
    (found,) = (name for name in names if known.peak(name) is not None)
    return found


def flops_per_token(model: str, *, masked: bool = False) -> float:
    """The model's own FLOPs of training on one token, and those of masked scores if they count."""
    known = facts(model)
    assert known.flops_per_token is not None
    attention = sum(part.attention.flops * part.count for part in known.parts if part.attention)
    return known.flops_per_token + (3 * attention / known.tokens if masked else 0)


def mfu(model: str, device: str, rate: float, *, masked: bool = False) -> float:
    """Percent of a device's bf16 peak at so many tokens a second."""
    return 100 * rate * flops_per_token(model, masked=masked) / peak_flops(device)


def ratio(model: str, cluster: str, *, slow: str, fast: str) -> float:
    """How many times the step of one plan takes that of another."""
    return seconds(told(model, slow, cluster)) / seconds(told(model, fast, cluster))


def state_per_parameter(model: str, plan: str, cluster: str) -> float:
    """Bytes a rank keeps from step to step, over the model's parameters."""
    return told(model, plan, cluster).memory.state_bytes / facts(model).parameters


def fastest(plans: dict[str, Forecast]) -> str:
    """The name of the fastest plan that fits."""
    return min((name for name in plans if plans[name].fits), key=lambda name: seconds(plans[name]))


def largest(holds: Callable[[int], bool], numbers: Sequence[int]) -> int:
    """The largest of these numbers for which something holds."""
    return max(number for number in numbers if holds(number))


def smallest(holds: Callable[[int], bool], numbers: Sequence[int]) -> int:
    return min(number for number in numbers if holds(number))


def settles(plan: str, ranks: int) -> bool:
    """Whether a plan's numbers agree with each other on so many ranks."""
    try:
        Plan.parse(plan).settle(ranks)
    except PlanError:
        return False
    return True


def micro_batches(plan: str, ranks: int) -> int:
    """How many micro-batches each rank makes in a step."""
    found = Plan.parse(plan).settle(ranks).batch.micro_batches
    assert found is not None
    return found


def refitted_micro_batches(plan: str, ranks: int) -> int:
    """The same after the plan was refitted to so many ranks."""
    return micro_batches(str(refit(Plan.parse(plan), ranks).plan), ranks)


def most_tensor_ways(model: str) -> int:
    """In how many ways tensor parallelism can cut a model at most."""

    def legal(ways: int) -> bool:
        plan = Plan.parse(f"bf16 tensor={ways} micro=1 batch=1")
        return not plan_problems(facts(model), plan, Cluster.parse(f"{ways} x H100-80GB"))

    return largest(legal, [2**power for power in range(7)])


def scaled_rate(lr: float, batch: int, reference: int, rule: str) -> float:
    return scale_rate(lr, batch=batch, reference=reference, rule=rule)


def rate(model: str, plan: str, cluster: str) -> float:
    """Tokens a second of each device."""
    found = told(model, plan, cluster).tokens_per_second_per_device
    assert found is not None
    return found


def days(model: str, plan: str, cluster: str, sequence: int, *, tokens: float) -> float:
    """How long training on so many tokens takes."""
    found = told(model, plan, cluster, sequence).seconds_for(tokens)
    assert found is not None
    return found / DAY


def dollars(model: str, plan: str, cluster: str, sequence: int, *, tokens: float) -> float:
    """What the devices' rent is by then."""
    found = told(model, plan, cluster, sequence).cost_for(tokens).dollars
    assert found is not None
    return found


def save_interval(stall_seconds: float, between_failures: float) -> float:
    """Seconds, or steps, between saves that lose least (Young, 1974)."""
    return math.sqrt(2 * stall_seconds * between_failures)


def useful_share(*, steps: int, every: int, lost_at: int, save_steps: float = 0.0) -> float:
    """Which share of the steps that a run takes are useful, if it goes on from its last save.

    A save takes as long as `save_steps` steps.
    """
    return steps / (steps + lost_at % every + steps // every * save_steps)


def least_waste(save_steps: float, between_failures: float) -> float:
    """Which share of the time saves and failures cost at the best interval."""
    every = save_interval(save_steps, between_failures)
    return save_steps / every + every / 2 / between_failures


def idle_share(schedule: str, stages: int, micro_batches: int) -> float:
    """Which share of a step a pipeline's ranks wait."""
    idle = bubble_share(Schedule.parse(schedule), stages)
    return idle / (micro_batches + idle)


def ring(ways: int) -> RankGroup:
    """A ring whose links carry a byte a second and have no latency, to count what is sent."""
    return RankGroup(ways, 1, 1.0, 0.0, 0.0)


def fp16(number: float) -> float:
    """A number as float16 has it."""
    found: float = struct.unpack("<e", struct.pack("<e", number))[0]
    return found


def strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each dimension lie in a contiguous tensor, in elements."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, size * steps[0])
    return steps


def fp16_of_bits(bits: int) -> float:
    found: float = struct.unpack("<e", bits.to_bytes(2, "little"))[0]
    return found


def bf16_of_bits(bits: int) -> float:
    """A bf16 is the upper half of a float32."""
    found: float = struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
    return found


def bits_of_one() -> int:
    """The upper half of 1 as a float32."""
    return int.from_bytes(struct.pack("<f", 1.0), "little") >> 16
