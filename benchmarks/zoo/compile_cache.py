"""Filling torch's compile caches before anything is timed, by several processes beside each other.

What the compiler makes of a module is the same however busy the machine is. What is chosen by the
clock is not: neither plans that trials found fastest nor block sizes that Triton timed are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from getpass import getuser
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

TIMED = "*.best_config"  # block sizes that were the fastest of several


def fill(script: Path, modules: Sequence[str], arms: str, processes: int, seconds: float) -> None:
    """Compile every arm of these modules; one that fails is compiled when it is timed."""
    began = time.monotonic()
    with TemporaryDirectory() as choices, ThreadPoolExecutor(processes) as pool:
        threads = str(max(2, (os.cpu_count() or 2) // processes))
        around = {**os.environ, "XDG_CACHE_HOME": choices, "TORCHINDUCTOR_COMPILE_THREADS": threads}
        compile_one = partial(start, script, arms, around, began + seconds)
        for name, outcome in zip(modules, pool.map(compile_one, modules)):
            print(f"compiled {name}: {outcome}", flush=True)
    for path in cache_folder().rglob(TIMED):
        path.unlink()


def start(script: Path, arms: str, around: dict[str, str], end: float, name: str) -> str:
    """Compile one module in a process of its own."""
    began = time.monotonic()
    if began > end:
        return "no time was left"
    command = [sys.executable, str(script), "--only", name, "--arms", arms, "--compile"]
    try:
        done = subprocess.run(
            command, env=around, capture_output=True, text=True, timeout=end - began
        )
    except subprocess.TimeoutExpired:
        return "not finished"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"{time.monotonic() - began:.0f} s" if not done.returncode else last[:200]


def cache_folder() -> Path:
    default = Path(gettempdir()) / f"torchinductor_{getuser()}"
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", default))
