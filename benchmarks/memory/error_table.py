"""The table of measured peaks beside those that were forecast, and by how much these are off."""

from __future__ import annotations

import statistics
from typing import Any

MIB = 2**20
WAYS = ("rehearsed", "formula")


def table_of(kept: dict[str, Any]) -> str:
    """The results as a page of Markdown."""
    rows = kept["rows"]
    lines = [
        "# Peak memory: measured, rehearsed, and by formula\n",
        f"{kept['date']}, {kept['device']}, {kept['machine']}, torch {kept['torch']}. Commands: "
        "`python benchmarks/memory_gpu.py --measure`, then `--rehearse`.\n",
        *summary(rows),
        "",
        "| module | plan | allocated MiB | rehearsed | formula | reserved MiB | rehearsed "
        "| formula | peak in |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
        *(line_of(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def line_of(row: dict[str, Any]) -> str:
    cells = [row["module"], row["plan"]]
    if "failed" in row:
        return f"| {' | '.join(cells)} | {row['failed'][:120]} | | | | | | |"
    for key in ("allocated", "reserved"):
        cells.append(f"{row[key] / MIB:,.0f}")
        cells += [said(row, way, key) for way in WAYS]
    told = row.get("rehearsed", {})
    cells.append(f"{told.get('phase', '')} {told.get('at', '')}".strip())
    return f"| {' | '.join(cells)} |"


def said(row: dict[str, Any], way: str, key: str) -> str:
    off = error(row, way, key)
    if off is not None:
        return f"{off:+.1%}"
    return str(row.get(way, {}).get("failed", ""))[:90].replace("|", "/")


def error(row: dict[str, Any], way: str, key: str) -> float | None:
    told = row.get(way, {})
    return told[key] / row[key] - 1 if key in told and key in row else None


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for way in WAYS:
        for key in ("allocated", "reserved"):
            found = [off for row in rows if (off := error(row, way, key)) is not None]
            if found:
                sizes = sorted(map(abs, found))
                most = sizes[max(0, int(0.95 * len(sizes)) - 1)]
                low = sum(off < -0.01 for off in found)
                lines.append(
                    f"- {way}, {key}: {len(found)} cases, median |error| "
                    f"{statistics.median(sizes):.1%}, 95 % within {most:.1%}, lowest "
                    f"{min(found):+.1%}, {low} more than 1 % low."
                )
    return lines
