"""Pictures of a profile: seconds by cause, memory over a step, each beside its forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.palette import CAUSES, OWNERS, REFERENCE, cause_colour, owner_colour

from .plots import figure, place_legend, store
from .tables import digits

if TYPE_CHECKING:
    from stepladder.measure import MemoryTimeline
    from stepladder.record import Forecast, Memory, Profile

MIB = 2**20
LETTER = 0.0095  # of a bar's name, where the longest bar is 1
CAUSE_COLOURS = {cause: cause_colour(cause) for cause in CAUSES}
OWNER_COLOURS = {owner: owner_colour(owner) for owner in OWNERS}


def plot_causes(path: str | Path, found: Profile, said: Forecast | None) -> Path:
    """One bar measured, and one forecast where there is one, in the colours of their causes."""
    return store(draw_causes(found, said), path)


def draw_causes(found: Profile, said: Forecast | None) -> Any:
    bars = {"measured": dict(found.causes)}
    if said and said.time:
        bars["forecast"] = said.time.by_cause()
    drawn, axes = figure(9, 1.6 + 0.7 * len(bars))
    widest = 1e3 * max(sum(causes.values()) for causes in bars.values())
    for line, causes in enumerate(bars.values()):
        left = 0.0
        for cause, colour in CAUSE_COLOURS.items():
            width = causes.get(cause, 0.0) * 1e3
            axes.barh(line, width, left=left, height=0.6, color=colour, edgecolor="white")
            name = cause.replace("_", " ")
            if width > LETTER * max(len(name), 5) * widest:
                text = f"{name}\n{digits(width)}"
                axes.text(left + width / 2, line, text, ha="center", va="center", fontsize=8,
                          color="white")  # fmt: skip
            left += width
    present = [c for c in CAUSE_COLOURS if any(bar.get(c) for bar in bars.values())]
    patches = [axes.barh(0, 0, color=CAUSE_COLOURS[cause]) for cause in present]
    axes.legend(patches, [cause.replace("_", " ") for cause in present], frameon=False, ncols=9,
                fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.35), columnspacing=1,
                handlelength=1)  # fmt: skip
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set(xlabel="ms of a step", title=f"{found.plan}: {found.bound.partition(';')[0]}")
    axes.title.set_fontsize(9)
    axes.grid(axis="y", visible=False)
    return drawn


def plot_memory(
    path: str | Path, memory: MemoryTimeline, moments: Sequence[tuple[str, Memory]]
) -> Path:
    """Measured over a step on the left; the planner's moments of the same step on the right."""
    drawn, (left, right) = figure(11, 4.4, panels=2, widths=(3, 2))
    drawn_owners = [o for o in OWNER_COLOURS if any(memory.owners.get(o, []))]
    left.stackplot(
        memory.moments,
        [[size / MIB for size in memory.owners[owner]] for owner in drawn_owners],
        colors=[OWNER_COLOURS[owner] for owner in drawn_owners],
        labels=drawn_owners,
        step="post",
    )
    if memory.allocator:
        at, sizes = zip(*memory.allocator)
        left.plot(at, [size / MIB for size in sizes], color="black", linewidth=0.8,
                  label="the allocator's count")  # fmt: skip
    top = max(memory.memory.allocated_bytes, *(m.allocated_bytes for _, m in moments), 1) / MIB
    draw_marks(left, memory, top)
    left.set(xlabel="from the step's start to its end, by births and deaths of tensors",
             ylabel="MiB", title="measured", ylim=(0, 1.15 * top), xlim=(0, 1))  # fmt: skip
    draw_moments(right, moments, top)
    place_legend(right, handles=left.get_legend_handles_labels()[0])
    return store(drawn, path)


def draw_marks(axes: Any, memory: MemoryTimeline, top: float) -> None:
    for name, at in memory.marks.items():
        if name == "start":
            continue
        axes.axvline(at, color=REFERENCE, linestyle=":", linewidth=0.9)
        height = 1.1 if name == "peak" else 1.04
        axes.text(at, height * top, f" {name}", fontsize=8, va="center")


def draw_moments(axes: Any, moments: Sequence[tuple[str, Memory]], top: float) -> None:
    for index, (_, memory) in enumerate(moments):
        bottom = 0.0
        for owner, colour in OWNER_COLOURS.items():
            size = memory.by_owner()[owner] / MIB
            if owner not in ("context", "reserved"):
                axes.bar(index, size, bottom=bottom, color=colour, width=0.7)
                bottom += size
    axes.set_xticks(range(len(moments)), [name for name, _ in moments], rotation=30, ha="right")
    axes.set(title="forecast", ylim=(0, 1.15 * top))
    axes.grid(axis="x", visible=False)
    if not moments:
        axes.text(0.5, 0.5, "unknown", transform=axes.transAxes, ha="center")
