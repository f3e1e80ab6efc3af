"""One module, held by a process that times its steps when it is asked to.

    python timed_steps.py NAME FOLDER

Asked line by line on standard input: "prepare PLAN" climbs and takes the first steps, which may
compile and may run beside others; "time PLAN" times, with the machine to itself. Each is answered
by a line. Rows are written as soon as they are known; profiles are read at the end of input.
"""

from __future__ import annotations

import copy
import gc
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

OPTIMIZER = "adamw lr=1e-4 clip=1 wd=0.01"
WARM_STEPS, QUEUE, TIMED_SECONDS, MOST_STEPS = 3, 3, 0.4, 30
ALONE_STEPS = 6  # asked for one by one
PROFILED = ("bf16", "bf16 compile=on")
LISTED = 400  # of the most telling operations of a profile
KEPT_SHARE = 0.45  # of the device's memory that is free, below which a prepared run is dropped
Row = dict[str, Any]


class Subject:
    """A module, the runs that were prepared, and the profiles that are yet to be read."""

    def __init__(self, name: str, folder: Path) -> None:
        from real_sizes import CASES

        torch.manual_seed(0)
        self.name, self.rows = name, folder / f"{name}.jsonl"
        self.case = CASES[name]()
        batch = self.case.batch
        self.batch = tree_map(torch.Tensor.pin_memory, batch) if on_gpu() else batch
        self.prepared: dict[str, Any] = {}
        self.profiles: dict[str, Any] = {}

    def climbed(self, plan: str) -> Any:
        import stepladder as sl

        module = copy.deepcopy(self.case.module)
        run = sl.climb(
            module, loss=self.case.loss, optimizer=OPTIMIZER, plan=plan, sample=self.batch
        )
        for _ in range(WARM_STEPS):
            report = run.step(self.batch)
        float(report.loss)
        return run

    def prepare(self, plan: str) -> None:
        """The first steps; a run that others would lack the memory of is dropped again."""
        run = self.climbed(plan)
        release()
        if not on_gpu() or free_share() > KEPT_SHARE:
            self.prepared[plan] = run

    def time(self, plan: str) -> None:
        began = time.perf_counter()
        run = self.prepared.pop(plan, None) or self.climbed(plan)
        found = {"climb_seconds": round(time.perf_counter() - began, 2)}
        self.write(plan, {**found, **timed(run, self.batch, plan)})
        if plan in PROFILED:
            self.profiles[plan] = profiled(run, self.batch)

    def finish(self) -> None:
        for plan, found in self.profiles.items():
            self.write(plan, {"profile": summary(found)})

    def write(self, plan: str, found: Row) -> None:
        with open(self.rows, "a") as file:
            file.write(json.dumps({"module": self.name, "plan": plan, **found}) + "\n")


def timed(run: Any, batch: Any, plan: str) -> Row:
    """Seconds from step to step, and what the host takes to ask for a step."""
    settled = str(run.plan)
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    seconds, _ = steps(run, batch)
    row: Row = {
        "settled": settled, "step_seconds": statistics.median(seconds), "seconds": seconds,
        "alone_seconds": statistics.median(asked_alone(run, batch)),
    }  # fmt: skip
    if on_gpu():
        row["allocated_bytes"] = torch.cuda.max_memory_allocated()
    if "compile" not in plan:  # which would be compiled anew for another batch
        row |= host_bound(run, batch)
    return row


def host_bound(run: Any, batch: Any) -> Row:
    """The same operations on one row of the batch, which wait for the host."""
    one = tree_map(lambda tensor: tensor[:1].clone(), batch)
    try:
        run.step(one)
        seconds, asked = steps(run, one)
    except Exception as failed:
        return {"one_row_failed": f"{type(failed).__name__}: {str(failed)[:200]}"}
    return {
        "one_row_seconds": statistics.median(seconds), "one_row_asked": statistics.median(asked),
    }  # fmt: skip


def steps(run: Any, batch: Any) -> tuple[list[float], list[float]]:
    """Of many steps in queues that are not waited for."""
    run.step(batch)
    synchronize()
    seconds, asked, began = list[float](), list[float](), time.perf_counter()
    while len(seconds) < MOST_STEPS:
        each, hosts = queue_of_steps(run, batch)
        seconds += each
        asked += hosts
        if time.perf_counter() - began > TIMED_SECONDS:
            break
    return seconds, asked


def queue_of_steps(run: Any, batch: Any) -> tuple[list[float], list[float]]:
    """Seconds from the end of a step to the end of the next, and of asking for it."""
    marks, asked = [mark()], []
    for _ in range(QUEUE):
        began = time.perf_counter()
        run.step(batch)
        asked.append(time.perf_counter() - began)
        marks.append(mark())
    synchronize()
    return [between(a, b) for a, b in pairwise(marks)], asked


def asked_alone(run: Any, batch: Any) -> list[float]:
    """Seconds of asking for a step of an idle device: the host's own, as long as its queue of
    launches is not full."""
    found = []
    for _ in range(ALONE_STEPS):
        synchronize()
        began = time.perf_counter()
        run.step(batch)
        found.append(time.perf_counter() - began)
    synchronize()
    return found


def profiled(run: Any, batch: Any) -> Any:
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu() else [])]
    with profile(activities=kinds, record_shapes=True) as found:
        run.step(batch)
        synchronize()
    return found


def summary(found: Any) -> Row:
    """Kernels by name, and operations by shape, of one step."""
    kernels: dict[str, list[float]] = {}
    for event in found.events():
        if on_gpu() and event.device_type == torch.autograd.DeviceType.CUDA:
            entry = kernels.setdefault(event.name[:100], [0, 0.0])
            entry[0] += 1
            entry[1] += event.self_device_time_total
    asked = found.key_averages(group_by_input_shape=True)
    listed = [
        (one.key[:100], one.input_shapes, one.count, round(one.self_device_time_total, 1),
         round(one.self_cpu_time_total, 1))
        for one in asked
    ]  # fmt: skip
    listed.sort(key=lambda one: -max(one[3], 0.1 * one[4]))
    return {
        "launches": sum(int(count) for count, _ in kernels.values()),
        "dispatched": sum(one.count for one in asked if one.key.startswith("aten::")),
        "kernels": sorted(([k, *v] for k, v in kernels.items()), key=lambda k: -k[2])[:LISTED],
        "operations": listed[:LISTED],
    }


def free_share() -> float:
    free, total = torch.cuda.mem_get_info()
    return free / total


def release() -> None:
    gc.collect()
    if on_gpu():
        torch.cuda.empty_cache()


def on_gpu() -> bool:
    return torch.cuda.is_available()


def synchronize() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def mark() -> Any:
    if not on_gpu():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(one: Any, other: Any) -> float:
    return 1e-3 * one.elapsed_time(other) if on_gpu() else other - one


def main() -> int:
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(4)
    subject = Subject(name, folder)
    answer("built")
    for line in sys.stdin:
        word, _, plan = line.strip().partition(" ")
        try:
            {"prepare": subject.prepare, "time": subject.time}[word](plan)
        except Exception as failed:  # a module may fail in any way, and the others go on
            subject.write(plan, {"failed": f"{word}: {type(failed).__name__}: {str(failed)[:200]}"})
        release()
        answer("done")
    subject.finish()
    return 0


def answer(word: str) -> None:
    print(word, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
