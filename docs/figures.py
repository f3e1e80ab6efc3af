"""Draws the site's pictures: `python docs/figures.py` (the site's build does it too).

Each page that compares plans (see docs/tables.py) gets a picture of the same forecasts, memory by
owner and step time by cause. The rest is drawn from what the benchmarks left. The pictures are
never committed; they lie in docs/figures.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepladder.cli.results.communication_plots import draw_steps
from stepladder.cli.results.plot_axes import count_whole, label_bars
from stepladder.cli.results.plots import figure, place_legend, store
from stepladder.palette import COLOURS, LIMIT, REFERENCE, cause_colour, owner_colour
from stepladder.plan import Schedule
from stepladder.planner import bubble_share, forecast
from stepladder.record import Forecast

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures"
SEEN = 500  # pixels of the longest bar


def load_tables() -> Any:
    """docs/tables.py, which is no package's: the site's build and the tests come by path."""
    if "docs_tables" not in sys.modules:
        spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules["docs_tables"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["docs_tables"]


def stacked(
    axes: Any,
    rows: Sequence[dict[str, float]],
    colour: Callable[[str], str],
    limit: float | None = None,
) -> None:
    """A bar a row; the legend has all that is as wide as a pixel, and the limit."""
    for place, row in enumerate(rows):
        left = 0.0
        for kind, amount in row.items():
            name = kind.replace("_", " ")
            axes.barh(place, amount, left=left, color=colour(kind), height=0.62, label=name)
            left += amount
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if limit:
        axes.axvline(limit, color=LIMIT, linestyle="--", linewidth=1, label="usable")
    seen = dict(zip(*reversed(axes.get_legend_handles_labels())))
    most = max(sum(row.values()) for row in rows)
    wide = (name for row in rows for name, amount in row.items() if amount > most / SEEN)
    named = {"usable", *(name.replace("_", " ") for name in wide)}
    shown = {name: handle for name, handle in seen.items() if name in named}
    axes.legend(
        shown.values(), shown.keys(), loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4,
        frameon=False, fontsize=8, handlelength=1.4, columnspacing=1,
    )  # fmt: skip


def shorten(plans: Sequence[str]) -> list[str]:
    """Plans without the words they all share."""
    common = set.intersection(*(set(plan.split()) for plan in plans))
    kept = [" ".join(w for w in plan.split() if w not in common) for plan in plans]
    return [textwrap.fill(words, 30) or "plain" for words in kept]


def draw_forecasts(path: Path, found: Sequence[tuple[str, Forecast]], where: str) -> None:
    """Memory by owner, with the device's limit, beside step time by cause."""
    drawn, (memory, seconds) = figure(11, 1.7 + 0.46 * len(found), panels=2)
    owners = [{k: v / 2**30 for k, v in f.memory.by_owner().items()} for _, f in found]
    limit = (found[0][1].memory_limit_bytes or 0) / 2**30
    stacked(memory, owners, owner_colour, limit)
    memory.set_yticks(range(len(found)), shorten([plan for plan, _ in found]), fontsize=9)
    memory.set_xlabel("GiB on the fullest device")
    if limit:
        widest = max(sum(row.values()) for row in owners)
        memory.set_xlim(0, 1.08 * max(widest, limit))
    causes = [f.time.by_cause() if f.time else {} for _, f in found]
    stacked(seconds, causes, cause_colour)
    seconds.set_yticks(range(len(found)), [""] * len(found))
    for place, (_, one) in enumerate(found):
        if not one.fits:
            total = sum(causes[place].values())
            seconds.text(total, place, "  does not fit", va="center", fontsize=8, color=LIMIT)
    seconds.set_xlim(0, 1.25 * max(sum(row.values()) for row in causes))
    seconds.set_xlabel("seconds a step")
    drawn.suptitle(where, x=0.01, ha="left", fontsize=10, fontweight="bold")
    store(drawn, path)


def draw_precision(path: Path) -> None:
    kept = load_tables().read("precisions_gpu")
    drawn, axes = figure(10, 3.2, panels=len(kept["tables"]))
    for axis, table in zip(axes, kept["tables"]):
        rows = [row for row in table["rows"] if row["step_ms"]]
        bars = axis.bar(
            [row["name"].replace(" compile=on", "\ncompiled") for row in rows],
            [rows[0]["step_ms"] / row["step_ms"] for row in rows],
            color=[COLOURS[0] if row["name"] != "fp32" else COLOURS[-1] for row in rows],
        )
        label_bars(axis, bars, [f"{bar.get_height():.1f} ×" for bar in bars], 8)
        axis.margins(y=0.1)
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(visible=False, axis="x")
        axis.set_title(f"{table['model']}, batch {table['batch']}, {kept['machine']}", fontsize=10)
        axis.set_ylabel("times as fast as fp32")
    store(drawn, path)


def draw_accumulation(path: Path) -> None:
    rows = load_tables().read("accumulation")["rows"]
    drawn, (loss, held) = figure(10, 3.4, panels=2, widths=[3, 2])
    for index, row in enumerate(rows):
        # Curves that are the same lie on each other: the first are drawn wide.
        width = 1.2 + 1.5 * (len(rows) - 1 - index)
        loss.plot(
            row["losses"],
            linewidth=width,
            label=f"{row['micro_batches']} of {row['micro']}",
        )
    loss.set(xlabel="step", ylabel="loss")
    count_whole(loss.xaxis)
    place_legend(loss)
    bars = held.bar(
        [str(row["micro_batches"]) for row in rows],
        [row["activation_bytes"] / 2**20 for row in rows],
        color=COLOURS[1],
    )
    label_bars(held, bars, [f"{bar.get_height():.1f}" for bar in bars], 8)
    held.grid(visible=False, axis="x")
    held.set(xlabel="micro-batches a step", ylabel="activations, MiB")
    store(drawn, path)


def draw_compression(path: Path) -> None:
    rows = [row for row in load_tables().read("compression")["rows"] if not row["problem"]]
    links = list(dict.fromkeys(row["link"] for row in rows))
    ways = list(dict.fromkeys(row["compress"] for row in rows))
    drawn, axes = figure(8, 3.4)
    for index, way in enumerate(ways):
        heights = [
            next((r["against_none"] for r in rows if (r["link"], r["compress"]) == (link, way)), 0)
            for link in links
        ]
        places = [place + 0.2 * (index - (len(ways) - 1) / 2) for place in range(len(links))]
        bars = axes.bar(places, heights, width=0.18, label=way, color=COLOURS[index])
        label_bars(axes, bars, [f"{height:.1f}" for height in heights], 7)
    axes.axhline(1, color=REFERENCE, linewidth=0.8)
    axes.set_xticks(range(len(links)), links)
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="link between the ranks", ylabel="times as fast as uncompressed")
    place_legend(axes)
    store(drawn, path)


def draw_muon(path: Path) -> None:
    """Each optimizer's loss on text with its best rate, a line for each seed."""
    kept = load_tables().read("muon_gpu")
    drawn, axis = figure(9, 3.4)
    steps = kept["text"]["steps"]
    for colour, name in zip(COLOURS, ("adamw", "muon")):
        rows = [row for row in kept["losses"] if row["optimizer"] == name]
        best = min(rows, key=lambda row: sum(row["finals"].values()))
        for seed, curve in sorted(best["curves"].items()):
            ends = [steps * (at + 1) // len(curve) for at in range(len(curve))]
            axis.plot(
                ends,
                curve,
                color=colour,
                linewidth=1.2,
                label=best["words"] if seed == "0" else None,
            )
    axis.set(xlabel="step", ylabel="loss, mean of a tenth")
    place_legend(axis)
    store(drawn, path)


def draw_state(path: Path) -> None:
    """Losses with the state in fewer bytes against fp32's, as the benchmark draws them."""
    script = DOCS.parent / "benchmarks" / "training" / "optimizer_state.py"
    runpy.run_path(str(script))["draw"](load_tables().read("optimizer_state"), path)


def draw_bubbles(path: Path) -> None:
    ranks, counts = 8, [8, 12, 16, 24, 32, 48, 64, 96, 128]
    drawn, axes = figure(7.5, 3.6)
    for words in ("1f1b", "gpipe", "interleaved:2", "interleaved:4", "zero-bubble"):
        idle = bubble_share(Schedule.parse(words), ranks)
        shown = [count for count in counts if words != "zero-bubble" or count >= 2 * ranks]
        shares = [100 * idle / (count + idle) for count in shown]
        style = "--" if words == "gpipe" else "-"  # it lies on 1f1b
        width = 3.5 if words == "1f1b" else 1.8
        axes.plot(shown, shares, style, linewidth=width, label=words, marker=".")
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"])
    axes.set(xlabel=f"micro-batches a step, {ranks} stages", ylabel="idle, % of a step")
    place_legend(axes)
    store(drawn, path)


def draw_ring(path: Path) -> None:
    drawn, axes = figure(10, 3.6)
    draw_steps(axes, 4)
    store(drawn, path)


def draw_kernels(path: Path) -> None:
    rows = [row for row in load_tables().read("kernels")["rows"] if row["ours_ms"]]
    drawn, axes = figure(9, 3.6)
    for index, against in enumerate(("eager", "compiled")):
        places = [place + 0.4 * (index - 0.5) for place in range(len(rows))]
        gains = [row[f"{against}_ms"] / row["ours_ms"] for row in rows]
        bars = axes.barh(
            places, gains, height=0.36, label=f"against {against}", color=COLOURS[index]
        )
        label_bars(axes, bars, [f"{gain:.2f} ×" for gain in gains], 7)
    names = [f"{row['kernel']}  {' × '.join(map(str, row['shape']))}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color=REFERENCE, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times as fast")
    place_legend(axes)
    store(drawn, path)


CLIMB = (  # the home page's: rung, devices, plan
    ("fp32, one device", 1, "fp32 micro=1"),
    ("bf16", 1, "bf16 micro=1"),
    ("recompute blocks", 1, "bf16 micro=1 recompute=blocks"),
    ("DDP, eight devices", 8, "bf16 ddp micro=1 recompute=blocks"),
    ("ZeRO-1", 8, "bf16 zero1 micro=1 recompute=blocks"),
    ("ZeRO-2", 8, "bf16 zero2 micro=1 recompute=blocks"),
    ("ZeRO-3", 8, "bf16 zero3 micro=1 recompute=blocks"),
    ("compile, recompute less", 8, "bf16 zero3 micro=1 recompute=selective compile=on"),
    ("fp8", 8, "fp8 zero3 micro=1 recompute=selective compile=on"),
)


def draw_climb(path: Path) -> None:
    """One model up the ladder: memory by owner, and how fast each rung that fits trains."""
    found = [forecast("llama3-8b", plan, f"{count} x H100-80GB") for _, count, plan in CLIMB]
    drawn, axes = figure(10, 4.6)
    owners = [{k: v / 2**30 for k, v in one.memory.by_owner().items()} for one in found]
    limit = (found[0].memory_limit_bytes or 0) / 2**30
    stacked(axes, owners, owner_colour, limit)
    axes.set_ylim(len(found) - 0.05, -0.5)  # room for the limit's name below the bars
    axes.text(limit, len(found) - 0.1, f" {limit:.0f} GiB usable", fontsize=8, va="bottom")
    for place, (one, row) in enumerate(zip(found, owners)):
        rate = one.tokens_per_second_per_device or 0.0
        said = f"{rate:,.0f} tokens/s a device" if one.fits else "does not fit"
        colour = REFERENCE if one.fits else LIMIT
        end = max(sum(row.values()), limit)  # clear of the limit's line
        axes.text(end, place, f"  {said}", va="center", fontsize=9, color=colour)
    axes.set_yticks(range(len(found)), [name for name, _, _ in CLIMB])
    axes.set_xlim(0, 1.22 * max(sum(row.values()) for row in owners))
    axes.set_xlabel(
        "GiB on the fullest device: Llama-3 8B, sequences of 8,192, H100-80GB, forecast"
    )
    store(drawn, path)


OWN: dict[str, Callable[[Path], None]] = {  # picture: who draws it
    "climb.png": draw_climb,
    "precision-measured.png": draw_precision,
    "accumulation-measured.png": draw_accumulation,
    "compression-measured.png": draw_compression,
    "bubbles.png": draw_bubbles,
    "muon-measured.png": draw_muon,
    "state-measured.png": draw_state,
    "ring.png": draw_ring,
    "kernels.png": draw_kernels,
}


def forecast_figures() -> dict[str, Any]:
    """Picture of each page that compares plans: what it asks for."""
    tables = load_tables()
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        name = page.parent.name if page.stem == "index" and page.parent != DOCS else page.stem
        for index, case in enumerate(tables.asked(page.read_text())):
            found[f"{name}{'' if index == 0 else f'-{index + 1}'}.png"] = case
    return found


def shown() -> set[str]:
    """Pictures that some page shows: only these are drawn."""
    pages = (page.read_text() for page in DOCS.rglob("*.md"))
    return {name for text in pages for name in re.findall(r"figures/([\w-]+\.png)", text)}


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    wanted = shown()
    for name, case in forecast_figures().items():
        if name in wanted:
            shape, colon, _ = case.model.partition(":")
            model = f"a {shape} shape" if colon else case.model
            draw_forecasts(FIGURES / name, case.forecasts(), f"Forecast: {model} on {case.cluster}")
    for name, draw in OWN.items():
        if name in wanted:
            draw(FIGURES / name)


if __name__ == "__main__":
    main()
