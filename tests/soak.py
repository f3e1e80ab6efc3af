"""The gate and the soak: `make test` runs one live case of each law, `make soak` all of them.

`soak_after(cases)` marks all but the first cases of a parametrised test for the soak. Run as a
program, `python -m tests.soak [FILE OR FOLDER …]`, this runs what is marked, in all of the tests or
in those files, and writes the results into their rows of benchmarks/results/soak.md. Rows of other
files stay, each with its date and machine, and the page ends with the files that still lack a row.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "soak.md"
OUTCOMES = ("passed", "skipped", "failed")
END = {"skipped": "skipped", "failure": "failed", "error": "failed"}  # as the report calls it
HEADER = "| tests | passed | skipped | failed | seconds | date | machine |"


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
    words = ["-m", "soak", "-n", "2", "--dist", "loadfile", f"--junitxml={report}"]
    words += ["-o", "junit_family=xunit1", *sys.argv[1:]]  # that one names a test's file
    code = run_pytest(*words).returncode
    rows = read_rows(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(page(rows | new_rows(report), marked_files()))
    print(f"Written: {TABLE.relative_to(ROOT)}")
    return code


def run_pytest(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, text=True, **settings,
    )  # fmt: skip


def marked_files() -> set[str]:
    """The files with tests for the soak, from under tests/."""
    found = run_pytest("--collect-only", "-qq", "-m", "soak", "-n", "0", stdout=subprocess.PIPE)
    return set(re.findall(r"^tests/(\S+\.py): \d+$", found.stdout, re.MULTILINE))


def new_rows(report: Path) -> dict[str, str]:
    """By file, what passed, was skipped and failed in this run."""
    counts: dict[str, Counter[str]] = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        row = counts.setdefault((case.get("file") or "").removeprefix("tests/"), Counter())
        row[next((END[child.tag] for child in case if child.tag in END), "passed")] += 1
        row["milliseconds"] += round(1e3 * float(case.get("time") or 0))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    today = time.strftime("%Y-%m-%d")
    return {
        name: " | ".join(
            [
                *(str(row[key]) for key in OUTCOMES),
                f"{row['milliseconds'] / 1e3:.0f}",
                today,
                machine,
            ]
        )
        for name, row in counts.items()
    }


def read_rows(text: str) -> dict[str, str]:
    """By file, the rest of its row in a table written earlier."""
    return dict(re.findall(r"^\| (\S+\.py) \| (.*) \|$", text, re.MULTILINE))


def page(rows: dict[str, str], marked: set[str]) -> str:
    """The rows of the files with tests for the soak, their sum, and the files without a row."""
    rows = {name: row for name, row in sorted(rows.items()) if name in marked}
    sums = [sum(int(row.split(" | ")[place]) for row in rows.values()) for place in range(4)]
    lines = [
        "# The soak",
        "",
        f"`python -m tests.soak` writes the rows of the files that it runs. {len(rows)} files: "
        + ", ".join(f"{count} {name}" for count, name in zip(sums, OUTCOMES))
        + f"; {sums[3] / 60:.0f} minutes of tests.",
        "",
        HEADER,
        "|---" * HEADER.count(" | ") + "|---|",
        *(f"| {name} | {row} |" for name, row in rows.items()),
    ]
    missing = sorted(marked - set(rows))
    if missing:
        lines += ["", "Not run yet: " + ", ".join(missing) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
