"""The zoo's table on disk: every cell as JSON, and the page made of it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import torch

import stepladder

RESULTS = Path(__file__).parents[1] / "results" / "zoo.json"
Cells = dict[str, dict[str, dict[str, Any]]]  # by architecture and plan


def read_cells() -> Cells:
    return json.loads(RESULTS.read_text())["cells"] if RESULTS.exists() else {}


def find_source() -> str:
    """Git's hash of the package's folder, short; of changed files no hash says anything."""
    package = Path(stepladder.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", package, *words], capture_output=True, text=True)
        return done.stdout.strip()

    changed = bool(git("status", "--porcelain", "."))
    return git("rev-parse", "--short=12", "HEAD:./") + " with changes" * changed


def write_table(cells: Cells, names: list[str], plans: list[str], about: str, source: str) -> None:
    heading = {
        "date": str(date.today()),
        "machine": f"{platform.processor() or platform.machine()}, gloo",
        "torch": torch.__version__,
        "source": source,
    }
    known = {
        name: {plan: cells[name][plan] for plan in plans if plan in cells[name]}
        for name in names
        if name in cells
    }
    text = json.dumps({**heading, "cells": known}, indent=1) + "\n"
    RESULTS.write_text(text)
    said = ", ".join(f"{name} {value}" for name, value in heading.items())
    older = [c for row in known.values() for c in row.values() if c.get("source") != source]
    said += f"; {len(older)} cells are of another source" * bool(older)
    page = f"# Zoo\n\n{about}\n{said}.\n\n{summarise(known)}\n\n{table(known, plans)}\n"
    RESULTS.with_suffix(".md").write_text(page)


def summarise(cells: Cells) -> str:
    verdicts = Counter(cell["verdict"] for row in cells.values() for cell in row.values())
    counted = ", ".join(f"{count} {word}" for word, count in verdicts.most_common())
    return f"{len(cells)} architectures, {verdicts.total()} cells: {counted}."


def table(cells: Cells, plans: list[str]) -> str:
    """One row an architecture; refusals and failures are numbered and listed below."""
    notes: dict[str, int] = {}
    lines = ["| architecture | " + " | ".join(plans) + " |", "|---|" + "---|" * len(plans)]
    for name, row in cells.items():
        shown = [show(row[plan], notes) if plan in row else "not run" for plan in plans]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    listed = [f"{number}. {note}" for note, number in notes.items()]
    return "\n".join([*lines, "", *listed])


def show(cell: dict[str, Any], notes: dict[str, int]) -> str:
    if cell["verdict"].startswith("same"):
        return f"{cell['verdict']} {cell['difference']:.0e}"
    note = notes.setdefault(f"{cell['verdict']}: {cell['reason']}", len(notes) + 1)
    word = "n/a" if cell["verdict"] == "not applicable" else cell["verdict"]
    return f"{word} [{note}]"
