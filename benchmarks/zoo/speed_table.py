"""The table and plot of `benchmarks/zoo_gpu.py`: rows as JSON, and the page made of them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HEAD = [
    "| module | hand-written, ms | `auto`, ms | × | losses differ by | memory, × | plan |",
    "|---|---|---|---|---|---|---|",
]


def read_rows(results: Path) -> list[Row]:
    return json.loads(results.read_text()) if results.exists() else []


def keep(rows: list[Row], results: Path) -> None:
    """Write rows in the place of older ones of the same module and arm."""
    new = {(row["module"], row["arm"]) for row in rows}
    left = [row for row in read_rows(results) if (row["module"], row["arm"]) not in new]
    results.write_text(json.dumps(left + rows, indent=1) + "\n")


def show(results: Path, losses: int) -> None:
    """Print and write each module's speed as a multiple of the best hand-written loop's."""
    rows = read_rows(results)
    names = dict.fromkeys(row["module"] for row in rows)
    compared = {name: pair for name in names if (pair := best_pair(rows, name))}
    if not compared:
        return
    ratios = {name: hand["ms"] / ours["ms"] for name, (hand, ours) in compared.items()}
    lines = [line_of(name, *pair) for name, pair in compared.items()]
    failed = [row for row in rows if "error" in row]
    notes = [f"- {row['module']}: {row['note']}" for row in rows if "note" in row]
    notes += [f"- {row['module']}, {row['arm']}: failed, {row['error']}" for row in failed]
    parts = [title(rows, ratios, compared, losses), "", *HEAD, *lines, "", *notes]
    text = "\n".join(parts).rstrip() + "\n"
    print(text)
    results.with_suffix(".md").write_text(text)
    plot(ratios, results.with_suffix(".png"))


def best_pair(rows: list[Row], name: str) -> tuple[Row, Row] | None:
    """The fastest hand-written loop's row and that of auto."""
    timed = {row["arm"]: row for row in rows if row["module"] == name and "ms" in row}
    hand = [row for arm, row in timed.items() if arm.startswith("hand")]
    if not hand or "auto" not in timed:
        return None
    return min(hand, key=lambda row: row["ms"]), timed["auto"]


def line_of(name: str, hand: Row, ours: Row) -> str:
    words = ours["plan"].partition(" 'optimizer")[0]
    memory = memory_ratio(hand, ours)
    return (
        f"| {name} | {hand['ms']:.1f} | {ours['ms']:.1f} | {hand['ms'] / ours['ms']:.3f} | "
        f"{largest_difference(hand['losses'], ours['losses']):.1e} | "
        f"{'not measured' if memory is None else f'{memory:.2f}'} | `{words}` |"
    )


def memory_ratio(hand: Row, ours: Row) -> float | None:
    return ours["gib"] / hand["gib"] if hand.get("gib") and ours.get("gib") else None


def title(
    rows: list[Row], ratios: dict[str, float], compared: dict[str, tuple[Row, Row]], losses: int
) -> str:
    mean, worst = statistics.geometric_mean(ratios.values()), min(ratios.values())
    where = sorted({(row["gpu"], row["torch"], row["date"]) for row in rows if "gpu" in row})
    said = "; ".join(f"{gpu}, torch {version}, {date}" for gpu, version, date in where)
    hands = sorted({row["arm"] for row in rows if row["arm"].startswith("hand")})
    memory = [one for pair in compared.values() if (one := memory_ratio(*pair)) is not None]
    share = f" Memory at the median {statistics.median(memory):.2f} ×." if memory else ""
    return (
        "# `auto` on modules of other projects\n\n"
        f"`python benchmarks/zoo_gpu.py` on {said}. Above 1 is faster than the best hand-written "
        f"loop (tried: {', '.join(hands)}). Geometric mean of {len(ratios)} modules {mean:.3f}, "
        f"worst {worst:.3f}.{share} Losses: the largest relative difference over {losses} steps "
        "(with dropout, of other random numbers)."
    )


def plot(ratios: dict[str, float], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    ordered = sorted(ratios, key=ratios.__getitem__)
    figure = Figure(figsize=(8, 0.32 * len(ordered) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(ordered, [ratios[name] for name in ordered], color="tab:green")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("speed of plan=auto, as a multiple of the best hand-written loop's")
    axes.margins(x=0.08)
    figure.savefig(path, dpi=120)


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(one, other))
