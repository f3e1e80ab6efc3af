"""Pictures of what a learner's own code did: its numbers, messages, time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder import palette
from stepladder.cli.results.plots import place_legend, store
from stepladder.cli.results.tables import size

from .message_order import MESSAGE, Event, communications

if TYPE_CHECKING:
    from stepladder.labs.grading.own_run import OwnRun
    from stepladder.labs.lab import Lab

MOST = 64  # communications that are drawn one by one
Act = dict[int, list[Event]]
WORK = {"computes": "blue", "backward": "green", "communicates": "orange"}
UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def draw_own_run(lab: Lab, own: OwnRun, path: Path) -> Path:
    """The learner's run: messages between ranks where there are any, time, and memory held."""
    act = own.main_act()
    talks = any("kind" in event for events in act.values() for event in events)
    heights = [0.6 + 0.5 * len(act)] * (2 if talks else 1) + [2.6]
    drawn, panels = stacked(heights)
    if talks:
        draw_messages(panels[0], act)
    draw_timeline(panels[-2], act)
    draw_memory(panels[-1], act)
    panels[-1].set_xlim(panels[-2].get_xlim())
    drawn.suptitle(f"{lab.title}: your own run")
    return store(drawn, path)


def stacked(heights: list[float]) -> tuple[Any, Any]:
    """A figure with panels one below the other."""
    from matplotlib import pyplot

    from stepladder.cli.results.plots import figure

    empty, _ = figure()  # chooses how it is drawn, without a screen
    pyplot.close(empty)
    high = sum(heights) + 0.9 * len(heights)
    return pyplot.subplots(
        len(heights), 1, figsize=(9.5, high), layout="constrained", height_ratios=heights
    )


def draw_messages(axes: Any, act: Act) -> None:
    """Who sent to whom, in the order in which it had to happen: time goes to the right."""
    talks = communications(act)
    shown = talks[:MOST]
    for one in shown:
        if one.kind == MESSAGE:
            look = {"arrowstyle": "-|>", "color": colour_of(MESSAGE), "shrinkA": 0, "shrinkB": 0}
            start, end = (one.place - 0.4, one.ranks[0]), (one.place + 0.4, one.ranks[1])
            axes.annotate("", xy=end, xytext=start, arrowprops=look)
        else:
            line = {"color": colour_of(one.kind), "markersize": 5, "linewidth": 1.5}
            axes.plot([one.place] * len(one.ranks), one.ranks, "o-", **line)
    for kind in dict.fromkeys(one.kind for one in shown):
        most = max(one.bytes for one in shown if one.kind == kind)
        axes.plot([], [], color=colour_of(kind), label=f"{kind}, up to {size(most)}")
    more = len(talks) - len(shown)
    axes.set(xlabel=f"order{f'; {more} more' if more else ''}", title="messages between ranks")
    lanes(axes, act)
    axes.set_xlim(0.3, max([4, *(one.place for one in shown)]) + 0.7)
    if shown:
        place_legend(axes)


def colour_of(kind: str) -> str:
    return palette.HUES[palette.COLLECTIVES.get("send" if kind == MESSAGE else kind, "slate")].light


def draw_timeline(axes: Any, act: Act) -> None:
    """What each rank did when: a block lasts until the rank's next operation."""
    start = beginning(act)
    seen: dict[str, str] = {}
    for rank, events in act.items():
        ends = [event["at"] for event in events[1:]] + [events[-1]["at"]] if events else []
        for event, end in zip(events, ends):
            what = work(event)
            seen[what] = palette.HUES[WORK[what]].light
            left, wide = 1e3 * (event["at"] - start), 1e3 * max(end - event["at"], 0.0)
            axes.barh(rank, wide, left=left, height=0.6, color=seen[what])
    for what, colour in seen.items():
        axes.barh([0], [0], color=colour, label=what)
    axes.set(xlabel="ms", title="time")
    lanes(axes, act)
    if seen:
        place_legend(axes)


def work(event: Event) -> str:
    if "kind" in event:
        return "communicates"
    return "backward" if event["backward"] else "computes"


def draw_memory(axes: Any, act: Act) -> None:
    """Bytes of tensors that each rank holds, over the time."""
    start = beginning(act)
    colours = palette.series_colours(max(act, default=0) + 1)
    most = max((event["held"] for events in act.values() for event in events), default=0)
    unit, name = next((each for each in UNITS if most >= 4 * each[0]), UNITS[-1])
    for rank, events in act.items():
        times = [1e3 * (event["at"] - start) for event in events]
        held = [event["held"] / unit for event in events]
        label = f"rank {rank}" if len(act) > 1 else None
        axes.step(times, held, where="post", linewidth=1.2, color=colours[rank], label=label)
    axes.set(xlabel="ms", ylabel=f"{name} of tensors", title="memory")
    axes.set_ylim(0, 1.06 * max(most, 1) / unit)
    if len(act) > 1:
        place_legend(axes)


def beginning(act: Act) -> float:
    return min((event["at"] for events in act.values() for event in events), default=0.0)


def lanes(axes: Any, act: Act) -> None:
    """A row for each rank, the first on top."""
    ranks = sorted(act)
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.set_ylim(max(ranks, default=0) + 0.6, -0.6)
    axes.grid(visible=False)
