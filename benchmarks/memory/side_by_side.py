"""Processes beside each other, each with a part of the device's memory, until a deadline."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from pathlib import Path

Work = Callable[[str, Path], None]


def run_side_by_side(
    names: Iterable[str], work: Work, folder: Path, *, sizes: dict[str, float], room: float,
    at_once: int, seconds: float,
) -> list[str]:  # fmt: skip
    """Start `work(name, file)` for each name as soon as there is room; the names left undone.

    Processes are forked: what is imported here is imported there.
    """
    fork, end = multiprocessing.get_context("fork"), time.monotonic() + seconds
    waiting, running = list(names), {}
    while (waiting or running) and time.monotonic() < end:
        for name in [name for name, process in running.items() if not process.is_alive()]:
            running.pop(name).join()
        used = sum(sizes[name] for name in running)
        fitting = [name for name in waiting if used + sizes[name] <= room or not running]
        if fitting and len(running) < at_once:
            name = fitting[0]
            waiting.remove(name)
            running[name] = fork.Process(target=work, args=(name, folder / f"{name}.jsonl"))
            running[name].start()
        else:
            time.sleep(0.05)
    for process in running.values():
        process.kill()
        process.join()
    return [*running, *waiting]
