"""The gate and the soak: `make test` runs one live case of each law, `make soak` all of them.

`soak_after(cases)` marks all but the first cases of a parametrised test for the soak. Run as a
program, `python -m tests.soak`, this runs everything that is marked and writes the table of its
results: benchmarks/results/soak.md.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "soak.md"


def soak_after(cases: Iterable[Any], gate: int = 1) -> list[Any]:
    """The first `gate` cases as they are, the others marked for the soak."""
    found = list(cases)
    later = [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
        for case in found[gate:]
    ]
    return [*found[:gate], *later]


def main() -> int:
    """Run the soak; the table is written whatever the outcome, and the exit code tells it."""
    report = ROOT / "build" / "soak.xml"
    report.parent.mkdir(exist_ok=True)
    began = time.time()
    words = ["-m", "soak", "-n", "2", "--dist", "loadfile", f"--junitxml={report}", *sys.argv[1:]]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    ).returncode  # fmt: skip
    TABLE.write_text(table(report, time.time() - began))
    print(f"Written: {TABLE.relative_to(ROOT)}")
    return code


def table(report: Path, seconds: float) -> str:
    """What passed, was skipped and failed, by folder of tests."""
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case in xml.parse(report).getroot().iter("testcase"):
        row = rows[".".join((case.get("classname") or "").split(".")[1:3])]
        outcome = next((child.tag for child in case if child.tag != "properties"), "passed")
        row[{"failure": "failed", "error": "failed"}.get(outcome, outcome)] += 1
        row["seconds"] += float(case.get("time") or 0)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        "# The soak",
        "",
        f"`{' '.join(['python -m tests.soak', *sys.argv[1:]])}`, {time.strftime('%Y-%m-%d')}, "
        f"{machine}: {seconds / 60:.0f} minutes.",
        "",
        "| tests | passed | skipped | failed | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items()):
        counts = " | ".join(f"{row[key]:.0f}" for key in ("passed", "skipped", "failed", "seconds"))
        lines.append(f"| {name} | {counts} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
