"""How long set-up takes: seconds of the clock and of the CPU, for one or several revisions.

    python benchmarks/set_up.py [--python /usr/bin/python3] [REVISION …]

Clones each revision (HEAD without any) into an empty folder and makes what `make train` and then
what `make test` install there. pip's cache is used as it is: run it twice and quote the second. On
a machine that does other things too, compare the seconds of the CPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = {"make train installs": ".venv/.ready", "make test adds": ".venv/.dev-ready"}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(revision: str, python: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made) / "stepladder"
        subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
        subprocess.run(["git", "checkout", "--quiet", revision], cwd=tree, check=True)
        for name, target in STAGES.items():
            started, used = time.monotonic(), cpu_seconds()
            subprocess.run(
                ["make", "--silent", target, f"PYTHON={python}"],
                cwd=tree, check=True, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            print(
                f"{revision:12} {name:20} {time.monotonic() - started:6.0f} s,"
                f" {cpu_seconds() - used:5.0f} s of CPU, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("revisions", nargs="*", default=["HEAD"])
    reader.add_argument("--python", default="python3")
    options = reader.parse_args()
    for revision in options.revisions:
        measure(revision, options.python)


if __name__ == "__main__":
    main()
