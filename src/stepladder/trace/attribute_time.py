"""Attributing the time of a few traced steps to causes.

All time between the first mark and the last goes to one cause. Causes claim time in order, and each
gets what the earlier ones left:

    on a GPU   matmuls, attention, the optimizer's kernels, other kernels, copies; then collectives,
               of which only the exposed part remains; then, while the device was idle, what the
               host did: wait for data, a collective, the update, launching work, or Python
    on a CPU   the same, with operations in place of kernels

On a CPU the first nanoseconds of an operation, as many as an empty operation takes (`floor`), count
as launching; the rest is work. Only the thread that runs the steps counts, and autograd's threads:
data loader threads are not on the critical path.

Time outside all marks is not attributed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .intervals import Intervals, NanosecondInterval, intersect, length, subtract, union
from .kernel_causes import (
    BETWEEN_STAGES,
    SYNCHRONISING,
    collective_of,
    is_engine,
    is_launch,
    kernel_cause,
    op_cause,
)
from .quiet_durations import launching_share
from .spans import DATA, OPTIMIZER, STEP, SYNC, UPDATE, Span, self_times

Claims = dict[str, list[NanosecondInterval]]
DEVICE_ORDER = ("matrix", "attention", "optimizer", "memory_bound")
COMMUNICATION_CAUSES = ("communication", "bubble")
HOST_ORDER = ("matrix", "attention", "memory_bound", "optimizer")


@dataclass(slots=True)
class AttributedTime:
    """Nanoseconds of all traced steps by cause."""

    causes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    collectives: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # exposed
    hidden: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    operations: int = 0
    update_operations: int = 0  # called directly by the optimizer's step
    busy: int = 0  # of the device; on a CPU in operations
    waits: int = 0  # of the host for the device, inside steps
    claimed: Claims = field(default_factory=lambda: defaultdict(list))  # intervals by cause
    windows: list[NanosecondInterval] = field(default_factory=list)  # of the steps
    own: list[int] = field(default_factory=list)  # of each step, without exposed communication
    python: float = 0.0  # share outside operations, in the step with the least of it
    launching: float | None = None  # share of operations' time, on a CPU; see quiet_durations


@dataclass(slots=True)
class UnclaimedTime:
    """The time that no cause has claimed yet."""

    left: list[NanosecondInterval]
    found: AttributedTime

    def claim(self, cause: str, intervals: Iterable[NanosecondInterval]) -> int:
        mine = intersect(self.left, union(intervals))
        self.left = subtract(self.left, mine)
        self.found.causes[cause] += length(mine)
        self.found.claimed[cause] += mine
        return length(mine)

    def claim_collectives(self, collectives: Claims) -> None:
        """Attribute the exposed time of collectives; waiting for another stage is the bubble."""
        for name, intervals in collectives.items():
            whole = length(union(intervals))
            cause = "bubble" if name == BETWEEN_STAGES else "communication"
            exposed = self.claim(cause, intervals)
            self.found.collectives[name] += exposed
            self.found.hidden[name] += whole - exposed


def reduce_spans(spans: Sequence[Span], *, floor: int = 0) -> AttributedTime:
    """Attribute all time between marks; `floor` is the duration of an empty operation."""
    found = AttributedTime()
    phases = by_name(span for span in spans if span.kind == "phase")
    main = next((span.lane for span in spans if span.kind == "phase" and span.name == STEP), "")
    unclaimed = UnclaimedTime(
        union(interval for name in (DATA, STEP, SYNC) for interval in phases[name]), found
    )
    update, collectives = union(phases[UPDATE]), collective_spans(spans)
    kernels = [span for span in spans if span.kind in ("kernel", "copy")]
    lanes = working_lanes(spans, main)
    ops = host_claims(lanes, update, floor, collectives)
    fetching, collectives = split_collectives(collectives, union(phases[DATA]))
    if kernels:
        claim_device(unclaimed, kernels, update, collectives)
    unclaimed.claim_collectives(fetching)
    unclaimed.claim("data", phases[DATA])
    if kernels:
        unclaimed.claim_collectives(collectives)
        unclaimed.claim("optimizer", update)
        unclaimed.claim(
            "launch", [interval for intervals in ops.values() for interval in intervals]
        )
    else:
        found.busy = sum(unclaimed.claim(cause, ops[cause]) for cause in HOST_ORDER)
        unclaimed.claim("launch", ops["launch"])
        unclaimed.claim_collectives(
            collectives
        )  # before autograd's time, in which hooks wait for collectives
        unclaimed.claim("optimizer", update)
        unclaimed.claim("launch", ops["engine"])
        found.operations = sum(not is_launch(span.name) for lane in lanes for span in lane)
        found.launching = launching_share(lanes, sorted(phases[STEP]), update, floor)
    unclaimed.claim("host", phases[STEP] + phases[SYNC])
    marks = [name for name in phases if name.startswith(OPTIMIZER)]
    updating = union(interval for name in marks for interval in phases[name])
    found.update_operations = sum(count_outer_operations(lane, updating) for lane in lanes)
    steps = union(phases[STEP])
    waits = [s for s in spans if s.name in SYNCHRONISING and contains(s.start, steps)]
    found.waits = length(union(span.interval for span in waits))
    exposed = union(interval for cause in COMMUNICATION_CAUSES for interval in found.claimed[cause])
    found.windows = windows_of(phases)
    found.own = [b - a - length(intersect(exposed, [(a, b)])) for a, b in found.windows]
    found.python = min(
        (share_of_step(found.claimed["host"], step) for step in found.windows), default=0
    )
    return found


def split_collectives(collectives: Claims, data: Intervals) -> tuple[Claims, Claims]:
    """Collectives while a batch is fetched, and the others.

    Ranks exchange their numbers of rows there. A rank that waits for a slower one has no slow
    loader and is not slow itself, so that time is communication.
    """
    found = {name: union(intervals) for name, intervals in collectives.items()}
    inside = {name: intersect(intervals, data) for name, intervals in found.items()}
    return inside, {name: subtract(intervals, data) for name, intervals in found.items()}


def share_of_step(intervals: Intervals, step: NanosecondInterval) -> float:
    return length(intersect(intervals, [step])) / max(step[1] - step[0], 1)


def windows_of(phases: dict[str, list[NanosecondInterval]]) -> list[NanosecondInterval]:
    """Each step, from one wait for data to the next."""
    last = max((end for intervals in phases.values() for _, end in intervals), default=0)
    starts = sorted(start for start, _ in phases[DATA] or phases[STEP])
    return list(zip(starts, [*starts[1:], last]))


def count_outer_operations(lane: Sequence[Span], intervals: Intervals) -> int:
    """The number of operations in these intervals that are not inside another operation."""
    ops = [span for span in lane if span.kind == "op" and contains(span.start, intervals)]
    return sum(len(own.chain) == 1 for own in self_times(ops))


def claim_device(
    unclaimed: UnclaimedTime,
    kernels: Sequence[Span],
    update: Intervals,
    collectives: Claims,
) -> None:
    work: Claims = defaultdict(list)
    for span in kernels:
        cause = "memory_bound" if span.kind == "copy" else kernel_cause(span.name)
        if cause == "communication":
            collectives.setdefault(collective_of(span.name), []).append(span.interval)
            continue
        if span.launched_at is not None and contains(span.launched_at, update):
            cause = "optimizer"
        work[cause].append(span.interval)
        unclaimed.found.operations += span.kind == "kernel"
    unclaimed.found.busy = length(
        intersect(unclaimed.left, union(span.interval for span in kernels))
    )
    for cause in DEVICE_ORDER:
        unclaimed.claim(cause, work[cause])


def host_claims(
    lanes: Sequence[Sequence[Span]],
    update: Intervals,
    floor: int,
    collectives: Claims,
) -> Claims:
    """The intervals of operations by cause; those of collectives are added to `collectives`."""
    claims: Claims = defaultdict(list)
    for lane in lanes:
        for own in self_times(lane):
            named = [(cause, name) for name in own.chain if (cause := op_cause(name))]
            cause = named[0][0] if named else "memory_bound"
            if cause == "communication":
                collectives.setdefault(collective_of(named[0][1]), []).extend(own.intervals)
                continue
            if is_engine(own.chain[-1]) and not named:
                claims["engine"] += own.intervals
                continue
            first, rest = split_at(own.intervals, floor)
            if is_launch(own.chain[-1]) and not named:
                first, rest = [*first, *rest], []
            for intervals, what in ((first, "launch"), (rest, cause)):
                claims["optimizer"] += intersect(intervals, update)
                claims[what] += subtract(intervals, update)
    return claims


def split_at(
    intervals: Sequence[NanosecondInterval], floor: int
) -> tuple[list[NanosecondInterval], list[NanosecondInterval]]:
    """Split intervals into their first `floor` nanoseconds and the rest."""
    first: list[NanosecondInterval] = []
    rest: list[NanosecondInterval] = []
    for start, end in intervals:
        middle = min(start + max(floor - length(first), 0), end)
        if start < middle:
            first.append((start, middle))
        if middle < end:
            rest.append((middle, end))
    return first, rest


def working_lanes(spans: Sequence[Span], main: str) -> list[list[Span]]:
    """The operations of the thread that runs the steps, and of autograd's threads."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    autograd = {main}
    for span in spans:
        if span.kind in ("op", "runtime"):
            lanes[span.lane].append(span)
        if is_engine(span.name):
            autograd.add(span.lane)
    return [lane for name, lane in lanes.items() if name in autograd]


def collective_spans(spans: Iterable[Span]) -> Claims:
    found: Claims = {}
    for span in spans:
        if span.kind == "travel":
            found.setdefault(collective_of(span.name), []).append(span.interval)
    return found


def by_name(spans: Iterable[Span]) -> dict[str, list[NanosecondInterval]]:
    found: dict[str, list[NanosecondInterval]] = defaultdict(list)
    for span in spans:
        found[span.name].append(span.interval)
    return found


def contains(moment: int, intervals: Intervals) -> bool:
    low, high = 0, len(intervals)
    while low < high:
        middle = (low + high) // 2
        if intervals[middle][1] <= moment:
            low = middle + 1
        else:
            high = middle
    return low < len(intervals) and intervals[low][0] <= moment
