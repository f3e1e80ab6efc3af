"""A timeline of a few steps reduced to seconds by cause.

Every moment between the first mark and the last goes to one cause. Causes take turns, and each
claims what those before it left:

    on a device     products, attention, the update's kernels, other kernels, copies; then
                    collectives, of which so only the exposed part remains; then, where the device
                    stood still, whatever the host was at: waiting for data, in a collective, in
                    the update, launching work, or in Python
    on a processor  the same, with operations in place of kernels

On a processor an operation's first moments, as long as one that does nothing takes (`floor`), are
launching; the rest is work. Only the thread that takes the steps counts, and beside it those in
which autograd works: what a loader's threads do is not on the step's way.

Time outside all marks is claimed by nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .intervals import Interval, Intervals, common, length, union, without
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
from .spans import DATA, OPTIMIZER, STEP, SYNC, UPDATE, Span, own_moments

Claims = dict[str, list[Interval]]
DEVICE_ORDER = ("matrix", "attention", "optimizer", "memory_bound")
TALK = ("communication", "bubble")
HOST_ORDER = ("matrix", "attention", "memory_bound", "optimizer")


@dataclass(slots=True)
class Reduced:
    """Nanoseconds of all steps together."""

    causes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    collectives: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # exposed
    hidden: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    operations: int = 0
    update_operations: int = 0  # that the optimizer's own step asks for
    busy: int = 0  # of the device; on a processor in operations
    waits: int = 0  # of the host for the device, inside steps
    claimed: Claims = field(default_factory=lambda: defaultdict(list))  # which moments
    windows: list[Interval] = field(default_factory=list)  # of the steps
    own: list[int] = field(default_factory=list)  # of each step, without exposed communication
    python: float = 0.0  # outside operations: its share of the step that has least of it
    launching: float | None = None  # share of operations' time, undisturbed; on a processor


@dataclass(slots=True)
class Turn:
    """The moments that are still anybody's."""

    left: list[Interval]
    found: Reduced

    def claim(self, cause: str, moments: Iterable[Interval]) -> int:
        mine = common(self.left, union(moments))
        self.left = without(self.left, mine)
        self.found.causes[cause] += length(mine)
        self.found.claimed[cause] += mine
        return length(mine)

    def claim_talk(self, talk: dict[str, list[Interval]]) -> None:
        """Give collectives what nothing covers; waiting for a neighbour stage is the bubble."""
        for name, moments in talk.items():
            whole = length(union(moments))
            cause = "bubble" if name == BETWEEN_STAGES else "communication"
            exposed = self.claim(cause, moments)
            self.found.collectives[name] += exposed
            self.found.hidden[name] += whole - exposed


def reduce_spans(spans: Sequence[Span], *, floor: int = 0) -> Reduced:
    """Time by cause of everything between marks; `floor`: of an operation that does nothing."""
    found = Reduced()
    phases = by_name(span for span in spans if span.kind == "phase")
    main = next((span.lane for span in spans if span.kind == "phase" and span.name == STEP), "")
    turn = Turn(union(moment for name in (DATA, STEP, SYNC) for moment in phases[name]), found)
    update, talk = union(phases[UPDATE]), talks(spans)
    kernels = [span for span in spans if span.kind in ("kernel", "copy")]
    lanes = working_lanes(spans, main)
    if kernels:
        claim_device(turn, kernels, update, talk)
        turn.claim("data", phases[DATA])
        ops = claims_of_host(lanes, update, floor, talk)
        turn.claim_talk(talk)
        turn.claim("optimizer", update)
        turn.claim("launch", [moment for moments in ops.values() for moment in moments])
    else:
        turn.claim("data", phases[DATA])
        ops = claims_of_host(lanes, update, floor, talk)
        found.busy = sum(turn.claim(cause, ops[cause]) for cause in HOST_ORDER)
        turn.claim("launch", ops["launch"])
        turn.claim_talk(talk)  # before autograd's own time, in which hooks wait for collectives
        turn.claim("optimizer", update)
        turn.claim("launch", ops["engine"])
        found.operations = sum(not is_launch(span.name) for lane in lanes for span in lane)
        found.launching = launching_share(lanes, sorted(phases[STEP]), update, floor)
    turn.claim("host", phases[STEP] + phases[SYNC])
    marks = [name for name in phases if name.startswith(OPTIMIZER)]
    updating = union(moment for name in marks for moment in phases[name])
    found.update_operations = sum(asked_in(lane, updating) for lane in lanes)
    steps = union(phases[STEP])
    waits = [s for s in spans if s.name in SYNCHRONISING and inside(s.start, steps)]
    found.waits = length(union(span.interval for span in waits))
    exposed = union(moment for cause in TALK for moment in found.claimed[cause])
    found.windows = windows_of(phases)
    found.own = [b - a - length(common(exposed, [(a, b)])) for a, b in found.windows]
    found.python = min((share_of(found.claimed["host"], step) for step in found.windows), default=0)
    return found


def share_of(moments: Intervals, step: Interval) -> float:
    return length(common(moments, [step])) / max(step[1] - step[0], 1)


def windows_of(phases: dict[str, list[Interval]]) -> list[Interval]:
    """Each step, from one wait for data to the next."""
    last = max((end for moments in phases.values() for _, end in moments), default=0)
    starts = sorted(start for start, _ in phases[DATA] or phases[STEP])
    return list(zip(starts, [*starts[1:], last]))


def asked_in(lane: Sequence[Span], moments: Intervals) -> int:
    """Operations that begin in these moments and in no other operation."""
    ops = [span for span in lane if span.kind == "op" and inside(span.start, moments)]
    return sum(len(own.chain) == 1 for own in own_moments(ops))


def claim_device(
    turn: Turn, kernels: Sequence[Span], update: Intervals, talk: dict[str, list[Interval]]
) -> None:
    work: Claims = defaultdict(list)
    for span in kernels:
        cause = "memory_bound" if span.kind == "copy" else kernel_cause(span.name)
        if cause == "communication":
            talk.setdefault(collective_of(span.name), []).append(span.interval)
            continue
        if span.asked is not None and inside(span.asked, update):
            cause = "optimizer"
        work[cause].append(span.interval)
        turn.found.operations += span.kind == "kernel"
    turn.found.busy = length(common(turn.left, union(span.interval for span in kernels)))
    for cause in DEVICE_ORDER:
        turn.claim(cause, work[cause])


def claims_of_host(
    lanes: Sequence[Sequence[Span]],
    update: Intervals,
    floor: int,
    talk: dict[str, list[Interval]],
) -> Claims:
    """The moments of operations by the cause they count for; those of collectives go to `talk`."""
    claims: Claims = defaultdict(list)
    for lane in lanes:
        for own in own_moments(lane):
            named = [(cause, name) for name in own.chain if (cause := op_cause(name))]
            cause = named[0][0] if named else "memory_bound"
            if cause == "communication":
                talk.setdefault(collective_of(named[0][1]), []).extend(own.intervals)
                continue
            if is_engine(own.chain[-1]) and not named:
                claims["engine"] += own.intervals
                continue
            first, rest = cut(own.intervals, floor)
            if is_launch(own.chain[-1]) and not named:
                first, rest = [*first, *rest], []
            for moments, what in ((first, "launch"), (rest, cause)):
                claims["optimizer"] += common(moments, update)
                claims[what] += without(moments, update)
    return claims


def cut(intervals: Sequence[Interval], floor: int) -> tuple[list[Interval], list[Interval]]:
    """The first `floor` nanoseconds of these moments, and the others."""
    first: list[Interval] = []
    rest: list[Interval] = []
    for start, end in intervals:
        middle = min(start + max(floor - length(first), 0), end)
        if start < middle:
            first.append((start, middle))
        if middle < end:
            rest.append((middle, end))
    return first, rest


def working_lanes(spans: Sequence[Span], main: str) -> list[list[Span]]:
    """The operations of the thread that takes the steps, and of those autograd works in."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    autograd = {main}
    for span in spans:
        if span.kind in ("op", "runtime"):
            lanes[span.lane].append(span)
        if is_engine(span.name):
            autograd.add(span.lane)
    return [lane for name, lane in lanes.items() if name in autograd]


def talks(spans: Iterable[Span]) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for span in spans:
        if span.kind == "travel":
            found.setdefault(collective_of(span.name), []).append(span.interval)
    return found


def by_name(spans: Iterable[Span]) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = defaultdict(list)
    for span in spans:
        found[span.name].append(span.interval)
    return found


def inside(moment: int, intervals: Intervals) -> bool:
    low, high = 0, len(intervals)
    while low < high:
        middle = (low + high) // 2
        if intervals[middle][1] <= moment:
            low = middle + 1
        else:
            high = middle
    return low < len(intervals) and intervals[low][0] <= moment
