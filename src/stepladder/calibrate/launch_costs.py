"""Kernel-launch costs of the host, fitted to blocks so small that nothing else matters.

Blocks of two models, because one cannot tell a block's own cost from that of its launches: a GPT's
has few and many casts, a Llama's many and few casts. Each in every way of running, at two depths:
what one block more takes is free of everything that a pass does once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from stepladder.planner import part_launch_cost
from stepladder.planner.time.host_time import HOST_FACTORS, library_calls
from stepladder.record import Timing
from stepladder.workload import Part, find_facts

from .two_costs import fit_two_costs

TINY = {
    "launch": "gpt:layers={},hidden=64,heads=2,vocab=256,sequence=16",
    "launch llama": "llama:layers={},hidden=64,heads=2,kv_heads=2,ffn=128,vocab=256,sequence=16",
}
Row = tuple[float, float, float]  # how many of one cost, of another, and seconds of both


def launch_costs(timings: Sequence[Timing], device: str) -> tuple[float | None, dict[str, float]]:
    """Seconds of a launch, and every other cost in launches; see planner.host.

    The unit is the mean launch of a tiny GPT's block in bf16 with autocast; on a processor, which
    is timed in no other way, in fp32. What was not timed stays unknown.
    """
    block, plain = tiny_block("launch"), block_seconds(timings, "launch", "")
    if plain is None:
        return None, {}
    autocast = device != "CPU"
    rows = [row for kind in TINY for row in kernel_rows(timings, kind)] if autocast else []
    if len(rows) < 3:  # products and the rest cannot be told apart
        launch, found = plain / part_launch_cost(block, autocast=autocast).total, {}
    else:
        product, cheap = fit_two_costs(rows)
        mixed = block.launches.mixed + block.launches_back.mixed
        products = sum(library_calls(block))
        launch = (products * product + (mixed - products) * cheap) / mixed
        found = {"product": product / launch, "cheap": cheap / launch}
    found |= {name: seconds / launch for name, seconds in extra_costs(timings, launch).items()}
    return launch, found


def kernel_rows(timings: Sequence[Timing], kind: str) -> list[Row]:
    """Products and other launches of a block, with autocast and without."""
    block, rows = tiny_block(kind), list[Row]()
    products = sum(library_calls(block))
    for way, launches in (
        ("", block.launches.mixed + block.launches_back.mixed),
        ("pure", block.launches.eager + block.launches_back.eager),
    ):
        seconds = block_seconds(timings, kind, way)
        if seconds is not None:
            rows.append((products, launches - products, seconds))
    return rows


def extra_costs(timings: Sequence[Timing], launch: float) -> dict[str, float]:
    """Seconds of whatever comes on top of the launches of a pass."""
    found: dict[str, float] = {}
    for way, word in (("blocks", "again"), ("selective", "chosen")):
        found |= recomputing_costs(timings, way, (f"block {word}", f"launch {word}"))
    compiled = block_seconds(timings, "launch", "compiled")
    if compiled is not None:
        ones = {"compiled": 1.0}
        asked = part_launch_cost(tiny_block("launch"), autocast=True, compiled=True, factors=ones)
        found["compiled"] = compiled / asked.total
    tensors = tiny_block("launch").tensors
    one, fixed = block_seconds(timings, "ask for an update", ""), shortest(timings)
    if one is not None and fixed is not None:
        found["tensor"] = one / tensors
        found["step"] = max(fixed.seconds - one * fixed.shape[0], launch)
    return found


def recomputing_costs(
    timings: Sequence[Timing], way: str, names: tuple[str, str]
) -> dict[str, float]:
    """Of a block that computes itself again, and of each launch that it has.

    Only how fast this host is: what the two are to each other is torch's doing. Each found by
    itself, one disturbed timing would put all of it on the block, and a net of small blocks would
    be forecast at a third too much.
    """
    rows = [row for kind in TINY for row in recompute_rows(timings, kind, way)]
    if len(rows) < 2:  # a difference of two timings, and nothing to hold it against
        return {}
    block, launch = (HOST_FACTORS[name] for name in names)
    pace = statistics.median(
        seconds / (blocks * block + launches * launch) for blocks, launches, seconds in rows
    )
    return {names[0]: pace * block, names[1]: pace * launch}


def recompute_rows(timings: Sequence[Timing], kind: str, way: str) -> list[Row]:
    """One block, its forward launches, and what a way of recomputing adds to it."""
    block, rows = tiny_block(kind), list[Row]()
    for before, launches in (("", block.launches.mixed), ("pure", block.launches.eager)):
        plain = block_seconds(timings, kind, before)
        whole = block_seconds(timings, kind, f"{before} {way}".strip())
        if plain is not None and whole is not None and whole > plain:
            rows.append((1.0, launches, whole - plain))
    return rows


def block_seconds(timings: Sequence[Timing], kind: str, way: str) -> float | None:
    """Of one block more; of a depth that was timed several times the quickest counts, since what
    disturbs a host only slows it."""
    depths: dict[int, list[float]] = {}
    for timing in timings:
        if (timing.kind, timing.compute) == (kind, way):
            depths.setdefault(timing.shape[0], []).append(timing.seconds)
    if len(depths) < 2:
        return None
    fewer, more = min(depths), max(depths)
    spent = min(depths[more]) - min(depths[fewer])
    return spent / (more - fewer) if spent > 0 else None


def shortest(timings: Sequence[Timing]) -> Timing | None:
    updates = [t for t in timings if t.kind == "ask for an update"]
    return min(updates, key=lambda t: t.shape, default=None)


def tiny_block(kind: str) -> Part:
    return find_facts(TINY[kind].format(2)).blocks[0]
