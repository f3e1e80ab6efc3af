"""The memory that a module's steps take on this GPU, in a process of its own."""

from __future__ import annotations

import copy
import gc
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # many processes compile at once

import torch

import stepladder as sl
from kernel_scratch import KernelScratch
from stepladder.seam.cuda import allocation_events, start_history, stop_history
from zoo_cases import OPTIMIZER, case_of, job_of

STEPS, EVENTS = 4, 2_000_000
WITH_HISTORY = ("bf16", "fp32", "bf16 compile=whole")  # plans; reading it takes seconds
WITH_SCRATCH = ("bf16", "fp32", "bf16-master")
DEVICE = torch.device("cuda:0")
LISTED = 2**20  # bytes of the smallest block that is listed by itself


def measure_job(job: str, out: Path) -> None:
    """Every plan in turn; each row is a line of the file as soon as it is known."""
    torch.set_num_threads(1)
    name, plans = job_of(job)
    began = time.perf_counter()
    case = case_of(name)
    built = time.perf_counter() - began
    for plan in plans:
        began = time.perf_counter()
        try:
            row = measure_plan(case, plan)
        except Exception as failed:  # one plan must not end the others
            row = {"failed": f"{type(failed).__name__}: {str(failed)[:300]}"}
        row["seconds"] = {
            "module": built,
            "plan": time.perf_counter() - began,
            **row.get("seconds", {}),
        }
        with out.open("a") as lines:
            lines.write(json.dumps({"module": name, "plan": plan, **row}) + "\n")


def measure_plan(case: Any, plan: str) -> dict[str, Any]:
    """Peaks of the whole run, and of its later steps with an empty cache before them."""
    began = time.perf_counter()
    module = copy.deepcopy(case.module)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    history = History(plan in WITH_HISTORY)
    try:
        run = sl.climb(module, loss=case.loss, optimizer=OPTIMIZER, plan=plan, sample=case.batch)
        built, at_build = peaks(), time.perf_counter()
        run.step(case.batch)
        first, at_first = peaks(), time.perf_counter()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        begun = torch.cuda.memory_reserved()
        run.step(case.batch)
        trace = history.stop()  # of two steps: the rest is the same
        for _ in range(STEPS - 2):
            report = run.step(case.batch)
        float(report.loss)
        later, at_end = peaks(), time.perf_counter()
    finally:
        history.stop()
    between, scratch = torch.cuda.memory_allocated(), {}
    if plan in WITH_SCRATCH:
        with KernelScratch() as kernels:
            run.step(case.batch)
        scratch = kernels.rows
    return {
        "before": before, "built": built, "first": first, "reserved_at_second": begun,
        "between_steps": between, **later, **blocks_at_peak(trace), "scratch": scratch,
        "seconds": {
            "climb": at_build - began, "first_step": at_first - at_build,
            "steps": at_end - at_first,
        },
    }  # fmt: skip


class History:
    """The allocator's events, where they are wanted."""

    def __init__(self, wanted: bool) -> None:
        self.running, self.skipped = wanted, 0
        if wanted:
            start_history(EVENTS)
            self.skipped = len(allocation_events(DEVICE))

    def stop(self) -> list[dict[str, Any]]:
        if not self.running:
            return []
        self.running = False
        torch.cuda.synchronize()
        events = allocation_events(DEVICE)[self.skipped :]
        stop_history()
        return events


def peaks() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "requested": stats.get("requested_bytes.all.peak", 0),
    }


def blocks_at_peak(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """The blocks that were allocated at the peak of the whole run: size, how many, made where."""
    alive: dict[int, dict[str, Any]] = {}
    now = most = 0
    at_peak = 0
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            now += event["size"]
            if now > most:
                most, at_peak = now, index
        elif event["action"] == "free_completed" and (gone := alive.pop(event["addr"], None)):
            now -= gone["size"]
    there: dict[int, dict[str, Any]] = {}
    for event in trace[: at_peak + 1]:
        if event["action"] == "alloc":
            there[event["addr"]] = event
        elif event["action"] == "free_completed":
            there.pop(event["addr"], None)
    kinds = Counter((one["size"], place_of(one), one["stream"] != 0) for one in there.values())
    large = {kind: count for kind, count in kinds.items() if kind[0] >= LISTED}
    small = sum(size * count for (size, _, _), count in kinds.items() if size < LISTED)
    order = sorted(large.items(), key=lambda item: -item[0][0] * item[1])
    return {
        "events": len(trace),
        "blocks": [[*kind, count] for kind, count in order[:80]],
        "small_blocks": small,
        "around": [
            [one["action"], one["size"], place_of(one)]
            for one in trace[max(0, at_peak - 12) : at_peak + 4]
        ],
    }


def place_of(event: dict[str, Any]) -> str:
    """The three calls that are nearest to the allocation."""
    frames = [
        f"{Path(frame['filename']).stem}:{frame['name']}"
        for frame in event.get("frames", [])
        if frame["filename"].endswith(".py")
    ]
    return " < ".join(frames[:3])
