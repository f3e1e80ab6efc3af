"""The tables people quote about sharing work, measured in one go and kept with date and machine.

    python benchmarks/sharding_tables.py [zero scaling accumulation compression matmul walls
                                            pipeline]

Writes results/NAME.json for each. Run it on a machine that does nothing else: times of ranks that
share a core with something else say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TABLES = {  # name: its words
    "zero": ["gpt-tiny", "--ranks", "4"],
    "scaling": ["--ranks", "2", "--batch", "8", "--sequence", "128", "--steps", "8"],
    "accumulation": ["--steps", "30", "--batch", "16"],
    "compression": ["--steps", "8"],
    "matmul": [],
    "walls": ["--steps", "2"],
    "pipeline": ["--steps", "2"],
}
BUSY = 0.5  # of the cores, before we start


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("names", nargs="*", choices=[*TABLES, []], help="which; all without one")
    chosen = reader.parse_args().names or list(TABLES)
    load = os.getloadavg()[0]
    if load > BUSY * (os.cpu_count() or 1):
        print(f"The machine is busy (load {load:.1f}): times below are worth little.")
    failed = 0
    for name in chosen:
        command = [sys.executable, "-m", "stepladder.cli.main", "bench", name, *TABLES[name]]
        done = subprocess.run(
            [*command, "--device", "cpu", "--json"], stdout=subprocess.PIPE, text=True
        )
        failed += done.returncode != 0
        kept = {
            "date": str(date.today()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": version("torch"),
            "load": round(load, 2),
            "command": " ".join(["stepladder bench", name, *TABLES[name]]),
            "rows": json.loads(done.stdout) if done.stdout else [],
        }
        if name == "pipeline":  # a timeline is a picture, and long
            for row in kept["rows"]["schedules"]:
                del row["events"]
        (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {len(kept['rows'])} rows, exit {done.returncode}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
