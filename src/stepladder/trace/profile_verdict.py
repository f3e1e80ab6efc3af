"""A profile in words: what bounds the run, what is wrong with it, what would help.

A finding is claimed only where the measurement shows it beyond doubt; each threshold below has its
reason. The shares are of the step's wall time.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepladder.record import Profile
from stepladder.record.profile import Finding

from .plan_suggestions import Offer

WAITS_FOR_DATA = 0.10  # a prefetching loader costs well under a hundredth
EXPOSED = 0.15  # of communication: below that, other changes bring more
PYTHON = 0.30  # outside operations, in every step: a busy machine stops one of them anywhere
DISPATCHED = 0.5  # of the passes, spent on asking for operations instead of on them
LEAST_LAUNCH = 0.15  # of them, so that a pause in Python does not pass for many small operations
ASKING = 0.2  # of the operations' own time: on a processor large ones ask for a few hundredths
SLOWER = 1.25  # than the median of the other ranks in every step,
LATE = 0.05  # and by this much of a step
LEAST = 0.01  # of a step that a rank works
EACH = 4  # operations a parameter tensor and step; fused kernels need a fraction of one
SHOWN = 3  # offers
GROUPS = {
    "compute": ("matrix", "attention"),
    "memory": ("memory_bound",),
    "communication": ("communication", "bubble"),
    "data": ("data",),
    "launch": ("launch", "host"),
    "optimizer": ("optimizer",),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen beside the timeline."""

    waits: Mapping[str, int] = field(default_factory=Counter)  # by line, in one step
    device_waits: float = 0.0  # seconds a step the host stood in the driver's waiting calls
    graphs: str = ""  # what is kept from step to step
    update_operations: float = 0.0  # a step
    tensors: int = 1  # that the optimizer updates
    launching: float | None = None  # share of operations' time on a quiet processor
    python: float = 0.0  # outside operations: its share of the step that has least of it
    unknown: str = ""  # why nothing is forecast


def judge(profile: Profile, seen: Evidence, offers: Sequence[Offer]) -> Profile:
    """The profile with its verdict."""
    findings = [
        *slow_data(profile), *waiting_host(profile, seen), *leaks(seen), *stragglers(profile),
        *many_small(profile, seen), *slow_python(profile, seen), *unfused(profile, seen),
        *talk(profile, offers),
        *(Finding("plan", f"{offer.words} would give {offer.gain:.2f} ×", gain=offer.gain)
          for offer in offers[:SHOWN]),
    ]  # fmt: skip
    return replace(profile, bound=bound_of(profile, offers, seen), findings=tuple(findings))


def bound_of(profile: Profile, offers: Sequence[Offer], seen: Evidence) -> str:
    """What bounds this run, and the best way out."""
    shares = {group: profile.share(*causes) for group, causes in GROUPS.items()}
    group = max(shares, key=lambda name: shares[name])
    said = f"{group}-bound: {shares[group]:.0%} of the step{details(group, profile)}"
    if offers:
        return f"{said}; {offers[0].words} would give {offers[0].gain:.1f} ×"
    return f"{said}; gains unknown ({seen.unknown})" if seen.unknown else said


def details(group: str, profile: Profile) -> str:
    if group == "compute":
        return " at unknown MFU" if profile.mfu is None else f" at {profile.mfu:.0%} MFU"
    if group == "memory" and profile.bytes_per_second:
        rate, peak = profile.bytes_per_second, profile.peak_bytes_per_second
        of_peak = f"{rate / peak:.0%} of peak" if peak else "peak unknown"
        return f" at {rate / 1e9:,.0f} GB/s ({of_peak})"
    if group == "communication":
        named = [f"{name} {spent / profile.step_seconds:.0%}" for name, spent in largest(profile)]
        return f" exposed ({', '.join(named)})"
    return ""


def largest(profile: Profile) -> list[tuple[str, float]]:
    found = sorted(profile.collectives.items(), key=lambda pair: -pair[1])
    return [(name, spent) for name, spent in found if spent > 0.01 * profile.step_seconds]


def slow_data(profile: Profile) -> list[Finding]:
    share = profile.share("data")
    if share < WAITS_FOR_DATA:
        return []
    text = f"slow loader: the step waits {share:.0%} of its time for data"
    return [Finding("data", text, "Raise data.workers, or read faster", 1 / max(1 - share, 0.01))]


def waiting_host(profile: Profile, seen: Evidence) -> list[Finding]:
    found = [
        Finding(
            "sync",
            f"host synchronisation: {line} needs a number of the device {times(count)} a step",
            "Keep it a tensor, and read it when a report is due",
        )
        for line, count in seen.waits.items()
    ]
    if not found and seen.device_waits > LATE * profile.step_seconds:
        spent = seen.device_waits * 1e3
        text = f"host synchronisation: the step waits {spent:.1f} ms for the device"
        found = [Finding("sync", text, "Look for .cpu() and torch.cuda.synchronize in the step")]
    return found


def leaks(seen: Evidence) -> list[Finding]:
    return [Finding("leak", f"leaked graph: {seen.graphs}")] if seen.graphs else []


def stragglers(profile: Profile) -> list[Finding]:
    return [
        Finding("straggler", text, "See what else runs there, its data and its clock", gain)
        for text, gain in find_stragglers(profile.own_seconds, profile.step_seconds)
    ]


def find_stragglers(own: Sequence[Sequence[float]], step_seconds: float) -> list[tuple[str, float]]:
    """Ranks that are slower on their own than the others, step after step, and what that costs.

    Args:
        own: of each rank, its seconds outside collectives in each step.
    """
    usual = [statistics.median(steps) for steps in own]
    found = []
    for rank, mine in enumerate(own):
        others = [*usual[:rank], *usual[rank + 1 :]]
        theirs = statistics.median(others) if others else max(mine)
        theirs = max(theirs, LEAST * step_seconds)  # of ranks that only waited the clock says 0
        late = usual[rank] - theirs
        if min(mine) > SLOWER * theirs and late > LATE * step_seconds:
            text = (
                f"rank {rank} is {usual[rank] / theirs:.1f} × slower than the median, "
                f"{late * 1e3:.0f} ms a step outside collectives"
            )
            found.append((text, step_seconds / max(step_seconds - late, 0.01 * step_seconds)))
    return found


def many_small(profile: Profile, seen: Evidence) -> list[Finding]:
    passes = profile.share("matrix", "attention", "memory_bound", "launch", "host")
    launching, share = profile.share("launch"), profile.share("launch", "host")
    small = launching > LEAST_LAUNCH * passes and share > DISPATCHED * passes
    if not (small if seen.launching is None else seen.launching > ASKING):
        return []
    text = (
        f"launch-bound: {share:.0%} of the step asks for work instead of doing it, "
        f"{profile.operations:,.0f} operations a step"
    )
    return [Finding("launch", text, "A larger micro-batch, or compile=on", 1 / (1 - share))]


def slow_python(profile: Profile, seen: Evidence) -> list[Finding]:
    if seen.python < PYTHON or many_small(profile, seen):
        return []
    share = profile.share("host")
    text = f"slow Python: {share:.0%} of the step passes in Python outside operations"
    return [Finding("host", text, "See the trace for where", 1 / (1 - share))]


def unfused(profile: Profile, seen: Evidence) -> list[Finding]:
    if seen.update_operations <= EACH * seen.tensors:
        return []
    text = (
        f"unfused optimizer: {seen.update_operations:,.0f} operations a step update "
        f"{seen.tensors} tensors, {profile.share('optimizer'):.0%} of the step"
    )
    return [Finding("optimizer", text, "Use one with a fused kernel, such as adamw or sgd")]


def talk(profile: Profile, offers: Sequence[Offer]) -> list[Finding]:
    share = profile.share("communication", "bubble")
    if share < EXPOSED or find_stragglers(profile.own_seconds, profile.step_seconds):
        return []
    ways = [o for o in offers if o.words.startswith(("micro", "compress", "zero", "hybrid"))]
    fix = " or ".join(o.words for o in ways) or "larger micro-batch, bf16 reduce, hybrid sharding"
    gain = ways[0].gain if ways else None
    return [Finding("communication", f"communication exposed {share:.0%}", fix, gain)]


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
