"""How long a newcomer waits: from `git clone` to a first trained step and a first passed lab.

    python benchmarks/first_step.py [--keep-cache]

Clones this repository into an empty folder, runs what `make train` runs, reads the clock when the
journal of the run has its first step, then writes a lab's starter, puts our solution in its place
and lets the lab check it. pip's cache is switched off, so that everything is downloaded, unless
--keep-cache is given. Writes results/first_step.json; `python benchmarks/readme_figures.py` puts it
into the README. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "first_step.json"
LAB = "loss-scale"
LIMIT_SECONDS = 1800


def call(*words: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def first_step(folder: Path, environment: dict[str, str]) -> None:
    """Start `make train` and return when its journal has a step; the run is then stopped."""
    log = (folder.parent / "make.log").open("w")
    making = subprocess.Popen(
        ["make", "train"], cwd=folder, env=environment, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    give_up = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < give_up and not has_step(folder):
        if making.poll() is not None and not has_step(folder):
            sys.exit(f"make train ended:\n{(folder.parent / 'make.log').read_text()}")
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # the run too: it would save into what is taken away
        os.killpg(making.pid, signal.SIGKILL)
    making.wait()
    if not has_step(folder):
        sys.exit(f"no step within {LIMIT_SECONDS} s")


def has_step(folder: Path) -> bool:
    journals = (folder / "runs").glob("*/journal.jsonl")
    return any('"kind":"step"' in journal.read_text() for journal in journals)


def first_lab(folder: Path, environment: dict[str, str]) -> None:
    command = str(folder / ".venv" / "bin" / "stepladder")
    place = folder.parent / "learner"
    place.mkdir()
    call(command, "lab", "start", LAB, folder=place, environment=environment)
    (starter,) = place.glob("*.py")
    solution = call(command, "lab", "solution", LAB, folder=place, environment=environment)
    starter.write_text(solution)
    call(command, "lab", "check", LAB, folder=place, environment=environment)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--keep-cache", action="store_true", help="let pip use what it has")
    options = reader.parse_args()
    environment = {**os.environ, "COLUMNS": "200"}
    if not options.keep_cache:
        environment["PIP_NO_CACHE_DIR"] = "1"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "stepladder"
        start = time.monotonic()
        call("git", "clone", "--quiet", str(ROOT), str(folder), folder=Path(made),
             environment=environment)  # fmt: skip
        cloned = time.monotonic()
        call("make", ".venv/.ready", folder=folder, environment=environment)
        installed = time.monotonic()
        first_step(folder, environment)
        stepped = time.monotonic()
        first_lab(folder, environment)
        passed = time.monotonic()
        python = str(folder / ".venv" / "bin" / "python")
        ask = "import torch; print(torch.__version__)"
        torch = call(python, "-c", ask, folder=folder, environment=environment).strip()
    found = {
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch,
        "load": round(os.getloadavg()[0], 2),
        "pip cache": options.keep_cache,
        "clone seconds": round(cloned - start, 1),
        "install seconds": round(installed - cloned, 1),
        "first step seconds": round(stepped - installed, 1),
        "first lab seconds": round(passed - stepped, 1),
        "clone to first step seconds": round(stepped - start, 1),
        "clone to first lab seconds": round(installed - start + passed - stepped, 1),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
