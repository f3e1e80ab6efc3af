"""Collectives timed by size, and the latency and bandwidth (α–β) fitted to the times.

Sizes and bandwidths are counted as everybody counts them: the size is that of the whole (what a
gather ends with, what a scatter begins with), algorithm bandwidth is size over time, and bus
bandwidth multiplies it by the share of the size that each rank must send, so that it can be held
against a link's rate whatever the collective and the number of ranks.

The line is the planner's own: seconds = hops · latency + bytes sent / rate. One latency and one
rate fitted to all that the planner forecasts are a `Link`, and a calibration can carry it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stepladder.errors import WorldError
from stepladder.launch import Ranks
from stepladder.plan import Layout, Plan, SettledPlan
from stepladder.plan.layout import COPIES, SLICES
from stepladder.seam.process_groups import gather_tensor, scatter_tensor
from stepladder.world import join_world, synchronize

Call = Callable[[], object]

SIZES = tuple(2**power for power in range(10, 27, 2))  # 1 KiB to 64 MiB
WARMUP = 3
EACH_SECONDS = 0.1  # small messages are repeated for so long: one of them is too short to time
MOST_CALLS = 500


@dataclass(frozen=True, slots=True)
class GroupMember:
    """This rank as a member of the process group that communicates."""

    group: dist.ProcessGroup
    device: torch.device

    @property
    def ways(self) -> int:
        return self.group.size()

    def neighbour(self, distance: int) -> int:
        """The rank so far along the group, which is a ring."""
        return dist.get_global_rank(self.group, (self.group.rank() + distance) % self.ways)

    def zeros(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, device=self.device)  # sums of zeros stay finite


def all_reduce(seat: GroupMember, elements: int) -> Call:
    whole = seat.zeros(elements)
    return lambda: dist.all_reduce(whole, group=seat.group)


def all_gather(seat: GroupMember, elements: int) -> Call:
    whole, part = seat.zeros(elements), seat.zeros(elements // seat.ways)
    return lambda: gather_tensor(whole, part, group=seat.group)


def reduce_scatter(seat: GroupMember, elements: int) -> Call:
    whole, part = seat.zeros(elements), seat.zeros(elements // seat.ways)
    return lambda: scatter_tensor(part, whole, group=seat.group)


def broadcast(seat: GroupMember, elements: int) -> Call:
    whole = seat.zeros(elements)
    return lambda: dist.broadcast(whole, group_src=0, group=seat.group)


def all_to_all(seat: GroupMember, elements: int) -> Call:
    there, back = seat.zeros(elements), seat.zeros(elements)
    return lambda: dist.all_to_all_single(back, there, group=seat.group)


def send_receive(seat: GroupMember, elements: int) -> Call:
    """Every rank sends to the next and receives from the one before, as a full pipeline does."""
    check_messages(seat.device)
    there, back = seat.zeros(elements), seat.zeros(elements)
    onward, before = seat.neighbour(1), seat.neighbour(-1)

    def shift() -> None:
        messages = [
            dist.P2POp(dist.isend, there, onward, seat.group),
            dist.P2POp(dist.irecv, back, before, seat.group),
        ]
        for request in dist.batch_isend_irecv(messages):
            request.wait()

    return shift


def check_messages(device: torch.device) -> None:
    """Refuse what would end in "Bad address" inside gloo."""
    if device.type == "cuda" and dist.get_backend() == "gloo":
        raise WorldError(
            "device",
            "gloo cannot send messages from one rank's GPU memory to another's",
            "Use --device cpu, or as many GPUs as ranks, which talk over NCCL.",
        )


@dataclass(frozen=True, slots=True)
class Collective:
    """How a collective is started, and what it costs each rank of a ring of `ways`."""

    start: Callable[[GroupMember, int], Call]
    share: Callable[[int], float]  # of the size, sent by each rank
    hops: Callable[[int], int]  # messages that must follow each other
    modelled: bool = True  # by the planner


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": Collective(all_reduce, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
    "all_gather": Collective(all_gather, lambda n: (n - 1) / n, lambda n: n - 1),
    "reduce_scatter": Collective(reduce_scatter, lambda n: (n - 1) / n, lambda n: n - 1),
    "broadcast": Collective(broadcast, lambda n: 1.0, lambda n: n - 1, modelled=False),
    "all_to_all": Collective(all_to_all, lambda n: (n - 1) / n, lambda n: n - 1, modelled=False),
    "send_receive": Collective(send_receive, lambda n: 1.0, lambda n: 1),
}


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective over the ranks that differ along some axes."""

    collective: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective at one size, on the slowest rank."""

    collective: str
    axes: str
    ways: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds

    @property
    def bus_bytes_per_second(self) -> float:
        return self.bytes_per_second * COLLECTIVES[self.collective].share(self.ways)


@dataclass(frozen=True, slots=True)
class LatencyBandwidthFit:
    """seconds = hops · latency + bytes sent / rate, fitted to rows."""

    latency_seconds: float
    bytes_per_second: float
    error: float  # median, relative to what was measured

    def seconds(self, row: CollectiveRow) -> float:
        hops, sent = costs(row)
        return hops * self.latency_seconds + sent / self.bytes_per_second


def collectives_of_plan(plan: Plan) -> list[CollectiveUse]:
    """What a settled plan's steps send, over which axes; those of one rank are left out."""
    found = [CollectiveUse("send_receive", ("pipeline",))]
    found += [
        CollectiveUse("all_gather", ("tensor",)),
        CollectiveUse("reduce_scatter", ("tensor",)),
    ]
    settled = SettledPlan(plan)
    if settled.sliced:
        found += [CollectiveUse("all_gather", SLICES), CollectiveUse("reduce_scatter", SLICES)]
        found += [CollectiveUse("all_reduce", ("replicate",))]
    else:
        found += [CollectiveUse("all_reduce", COPIES)]
        if settled.slices_optimizer_only:  # what does not divide is sent by its owners, one by one
            found += [CollectiveUse("all_gather", SLICES), CollectiveUse("broadcast", SLICES)]
    if plan.layout.context > 1:
        found += [
            CollectiveUse("all_gather", ("context",)),
            CollectiveUse("reduce_scatter", ("context",)),
        ]
    used = [CollectiveUse(use.collective, used_axes(plan.layout, use.axes)) for use in found]
    return list(dict.fromkeys(use for use in used if use.axes))


def used_axes(layout: Layout, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if getattr(layout, axis) > 1)


def all_collectives() -> list[CollectiveUse]:
    """All collectives over all ranks."""
    return [CollectiveUse(name, ("replicate",)) for name in COLLECTIVES]


def measure_collective(
    pool: Ranks,
    use: CollectiveUse,
    layout: Layout,
    sizes: Sequence[int] = SIZES,
    *,
    device: str = "auto",
    steps: int = 10,
) -> list[CollectiveRow]:
    """A row a size. All groups of the axes talk at once, as in a run."""
    answers = pool.call(time_collective, use, layout, tuple(sizes), device, steps)
    ways = answers[0][0][0]
    axes = "x".join(use.axes) if ways < layout.num_ranks else "all"
    return [
        CollectiveRow(use.collective, axes, ways, size, max(a[index][2] for a in answers))
        for index, (_, size, _) in enumerate(answers[0])
    ]


def time_collective(
    use: CollectiveUse, layout: Layout, sizes: Sequence[int], device: str, steps: int
) -> list[tuple[int, int, float]]:
    """On one rank: ways, bytes and seconds of each size, rounded up to what the ranks divide."""
    world = join_world(layout, device)
    seat = GroupMember(world.group(*use.axes), world.device)
    found = []
    for size in sizes:
        elements = -(-size // (4 * seat.ways)) * seat.ways
        call = COLLECTIVES[use.collective].start(seat, elements)
        found.append((seat.ways, 4 * elements, median_call(call, world.device, steps)))
    world.close()
    return found


def median_call(call: Call, device: torch.device, steps: int) -> float:
    """Median seconds of a call that all ranks make together, from idle to idle.

    Called at least `steps` times, short ones more often; the slowest rank says how often, since a
    rank that made one call more would wait for ever.
    """
    warm = [seconds_of(call, device) for _ in range(WARMUP)]
    slowest = torch.tensor(min(warm), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    calls = max(steps, min(MOST_CALLS, round(EACH_SECONDS / slowest.item())))
    return statistics.median(seconds_of(call, device) for _ in range(calls))


def seconds_of(call: Call, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def costs(row: CollectiveRow) -> tuple[float, float]:
    """Hops, and bytes that each rank sends."""
    kind = COLLECTIVES[row.collective]
    return kind.hops(row.ways), kind.share(row.ways) * row.bytes


def fit_line(rows: Sequence[CollectiveRow]) -> LatencyBandwidthFit | None:
    """The latency and rate nearest to the rows, relative to each; None where they show none.

    Relative, because a fit to plain seconds would see only the largest messages.
    """
    points = [tuple(cost / row.seconds for cost in costs(row)) for row in rows]  # ideally h·α+s·β=1
    hh, hs, ss = (sum(p[i] * p[j] for p in points) for i, j in ((0, 0), (0, 1), (1, 1)))
    h, s = (sum(p[i] for p in points) for i in (0, 1))
    spread = hh * ss - hs * hs
    if len(points) < 2 or spread <= 1e-12 * hh * ss:
        return None  # one size only, or one rank: nothing tells latency from rate
    latency, per_byte = (h * ss - s * hs) / spread, (s * hh - h * hs) / spread
    if latency < 0:
        latency, per_byte = 0.0, s / ss
    if per_byte <= 0:
        return None
    line = LatencyBandwidthFit(latency, 1 / per_byte, 0.0)
    errors = [abs(line.seconds(row) - row.seconds) / row.seconds for row in rows]
    return LatencyBandwidthFit(latency, 1 / per_byte, statistics.median(errors))


def fit_link(rows: Iterable[CollectiveRow]) -> LatencyBandwidthFit | None:
    """One latency and rate for all that the planner forecasts."""
    return fit_line([row for row in rows if COLLECTIVES[row.collective].modelled])
