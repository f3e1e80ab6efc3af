"""The verdict on a profile: what limits the run, findings, and what would help.

A finding is reported only if the measurement is clear; each threshold below has its reason. Shares
are of the step's wall time.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepladder.record import Profile
from stepladder.record.profile import ProfileFinding

from .plan_suggestions import Suggestion

DATA_WAIT_SHARE = 0.10  # a prefetching loader costs well under a hundredth
EXPOSED_SHARE = 0.15  # of communication: below that, other changes bring more
PYTHON_SHARE = 0.30  # outside operations, in every step, since a busy machine may stall one of them
DISPATCH_SHARE = 0.5  # of forward and backward, spent on launching operations
MIN_LAUNCH_SHARE = 0.15  # of them, so that a pause in Python is not taken for many small operations
LAUNCH_SHARE = 0.2  # of operations' own time: on a CPU large ones need a few hundredths
SLOWER_FACTOR = 1.25  # than the median of the other ranks in every step,
LATE_SHARE = 0.05  # and by this share of a step
MIN_OWN_SHARE = 0.01  # of a step: the least own time assumed of a rank
OPERATIONS_PER_TENSOR = 4  # per step; fused kernels need a fraction of one
MAX_SUGGESTIONS = 3
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
    """What was measured besides the trace."""

    waits: Mapping[str, int] = field(default_factory=Counter)  # by line, in one step
    device_waits: float = 0.0  # seconds per step in the driver's synchronising calls
    graphs: str = ""  # autograd graphs retained between steps
    update_operations: float = 0.0  # per step
    tensors: int = 1  # that the optimizer updates
    launching: float | None = None  # share of operations' time, on a CPU
    python: float = 0.0  # share outside operations, in the step with the least of it
    unknown: str = ""  # why there is no forecast


def judge(profile: Profile, seen: Evidence, suggestions: Sequence[Suggestion]) -> Profile:
    """The profile with its bound and findings filled in."""
    findings = [
        *slow_loader(profile),
        *host_synchronisation(profile, seen),
        *leaks(seen),
        *stragglers(profile),
        *launch_bound(profile, seen),
        *slow_python(profile, seen),
        *unfused_optimizer(profile, seen),
        *exposed_communication(profile, suggestions),
        *(
            ProfileFinding("plan", f"{each.words} would give {each.gain:.2f} ×", gain=each.gain)
            for each in suggestions[:MAX_SUGGESTIONS]
        ),
    ]
    return replace(profile, bound=bound_of(profile, suggestions, seen), findings=tuple(findings))


def bound_of(profile: Profile, suggestions: Sequence[Suggestion], seen: Evidence) -> str:
    """What limits this run, and the best suggestion, in a sentence."""
    shares = {group: profile.share(*causes) for group, causes in GROUPS.items()}
    group = max(shares, key=lambda name: shares[name])
    sentence = f"{group}-bound: {shares[group]:.0%} of the step{details(group, profile)}"
    if suggestions:
        return f"{sentence}; {suggestions[0].words} would give {suggestions[0].gain:.1f} ×"
    return f"{sentence}; gains unknown ({seen.unknown})" if seen.unknown else sentence


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


def slow_loader(profile: Profile) -> list[ProfileFinding]:
    share = profile.share("data")
    if share < DATA_WAIT_SHARE:
        return []
    text = f"slow loader: the step waits {share:.0%} of its time for data"
    return [
        ProfileFinding("data", text, "Raise data.workers, or read faster", 1 / max(1 - share, 0.01))
    ]


def host_synchronisation(profile: Profile, seen: Evidence) -> list[ProfileFinding]:
    found = [
        ProfileFinding(
            "sync",
            f"host synchronisation: {line} needs a number of the device {times(count)} a step",
            "Keep it a tensor, and read it when a report is due",
        )
        for line, count in seen.waits.items()
    ]
    if not found and seen.device_waits > LATE_SHARE * profile.step_seconds:
        spent = seen.device_waits * 1e3
        text = f"host synchronisation: the step waits {spent:.1f} ms for the device"
        found = [
            ProfileFinding("sync", text, "Look for .cpu() and torch.cuda.synchronize in the step")
        ]
    return found


def leaks(seen: Evidence) -> list[ProfileFinding]:
    return [ProfileFinding("leak", f"leaked graph: {seen.graphs}")] if seen.graphs else []


def stragglers(profile: Profile) -> list[ProfileFinding]:
    return [
        ProfileFinding("straggler", text, "See what else runs there, its data and its clock", gain)
        for text, gain in find_stragglers(profile.own_seconds, profile.step_seconds)
    ]


def find_stragglers(own: Sequence[Sequence[float]], step_seconds: float) -> list[tuple[str, float]]:
    """Ranks that are slower than the others in every step, described, with the possible gain.

    Args:
        own: for each rank, its seconds outside collectives in each step.
    """
    usual = [statistics.median(steps) for steps in own]
    found = []
    for rank, mine in enumerate(own):
        others = [*usual[:rank], *usual[rank + 1 :]]
        theirs = statistics.median(others) if others else max(mine)
        theirs = max(theirs, MIN_OWN_SHARE * step_seconds)  # ranks that only waited have 0
        late = usual[rank] - theirs
        if min(mine) > SLOWER_FACTOR * theirs and late > LATE_SHARE * step_seconds:
            text = (
                f"rank {rank} is {usual[rank] / theirs:.1f} × slower than the median, "
                f"{late * 1e3:.0f} ms a step outside collectives"
            )
            found.append((text, step_seconds / max(step_seconds - late, 0.01 * step_seconds)))
    return found


def launch_bound(profile: Profile, seen: Evidence) -> list[ProfileFinding]:
    passes = profile.share("matrix", "attention", "memory_bound", "launch", "host")
    launching, share = profile.share("launch"), profile.share("launch", "host")
    small = launching > MIN_LAUNCH_SHARE * passes and share > DISPATCH_SHARE * passes
    if not (small if seen.launching is None else seen.launching > LAUNCH_SHARE):
        return []
    text = (
        f"launch-bound: {share:.0%} of the step asks for work instead of doing it, "
        f"{profile.operations:,.0f} operations a step"
    )
    return [ProfileFinding("launch", text, "A larger micro-batch, or compile=on", 1 / (1 - share))]


def slow_python(profile: Profile, seen: Evidence) -> list[ProfileFinding]:
    if seen.python < PYTHON_SHARE or launch_bound(profile, seen):
        return []
    share = profile.share("host")
    text = f"slow Python: {share:.0%} of the step passes in Python outside operations"
    return [ProfileFinding("host", text, "See the trace for where", 1 / (1 - share))]


def unfused_optimizer(profile: Profile, seen: Evidence) -> list[ProfileFinding]:
    if seen.update_operations <= OPERATIONS_PER_TENSOR * seen.tensors:
        return []
    text = (
        f"unfused optimizer: {seen.update_operations:,.0f} operations a step update "
        f"{seen.tensors} tensors, {profile.share('optimizer'):.0%} of the step"
    )
    return [ProfileFinding("optimizer", text, "Use one with a fused kernel, such as adamw or sgd")]


def exposed_communication(
    profile: Profile, suggestions: Sequence[Suggestion]
) -> list[ProfileFinding]:
    share = profile.share("communication", "bubble")
    if share < EXPOSED_SHARE or find_stragglers(profile.own_seconds, profile.step_seconds):
        return []
    ways = [o for o in suggestions if o.words.startswith(("micro", "compress", "zero", "hybrid"))]
    fix = " or ".join(o.words for o in ways) or "larger micro-batch, bf16 reduce, hybrid sharding"
    gain = ways[0].gain if ways else None
    return [ProfileFinding("communication", f"communication exposed {share:.0%}", fix, gain)]


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
