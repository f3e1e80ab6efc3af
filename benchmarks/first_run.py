"""The first command a new user types, `stepladder train`, measured from outside.

Runs the bare command and prints: seconds in all, the model and plan it chose for this machine, its
steps, MFU, and its forecast beside what was measured.
Run: python benchmarks/first_run.py [--json FILE] [--log]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROWS = ("memory", "step", "tokens/s", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the measurements here too")
    parser.add_argument("--log", action="store_true", help="first the same run as a person sees it")
    options = parser.parse_args()
    if options.log:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(command(folder), check=True)
    found = measure()
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def command(folder: str) -> list[str]:
    return [sys.executable, "-m", "stepladder.cli.main", "train", "--run.folder", f"{folder}/run"]


def measure() -> dict[str, Any]:
    """One run in a process of its own, and what it said of itself."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ran = subprocess.run(
            [*command(folder), "--json"], stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - began
        recipe = tomllib.loads(Path(folder, "run", "run.toml").read_text())
        lines = Path(folder, "run", "journal.jsonl").read_text().splitlines()
    result = json.loads(ran.stdout)
    start = next(entry for entry in map(json.loads, lines) if entry["kind"] == "start")
    compared = {row["name"]: row for row in result["comparison"]}
    return {
        "seconds in all": round(seconds, 1),
        "model": recipe["model"]["name"],
        "plan": start["plan"],
        "steps": result["steps"],
        "validation loss": result["validation loss"],
        "MFU": result["MFU (median)"],
        "probe": start.get("probe"),
        **{name: text(compared[name]) for name in ROWS if name in compared},
    }


def text(row: dict[str, Any]) -> str:
    off = "unknown" if row["error"] is None else f"{row['error']:+.1%}"
    return f"forecast {row['forecast']}, measured {row['measured']} ({row['unit']}), error {off}"


if __name__ == "__main__":
    main()
