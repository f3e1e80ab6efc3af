"""Step time of modules of other projects on a GPU, and its forecast by operations.

    stepladder calibrate --out C.json
    python benchmarks/time_gpu.py --measure --out F.json [--only NAME,...]
    python benchmarks/time_gpu.py --forecast --from F.json --calibration C.json --out F.md

The last needs no GPU.

Each module has a process of its own, with a deadline, and each row is written as soon as
it is known. Processes build and compile beside each other, and take turns on the device. A step is
timed by CUDA events in a queue that is never waited for; "asked" is how long the host takes to ask
for it. One more step is profiled: its kernels, and its operations by shape.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "zoo"))

RESULTS = HERE / "results" / "time_gpu.json"
CALIBRATION = HERE / "results" / "time_gpu_calibration.json"
NAMES = (
    "gpt2", "bert", "resnet50", "llama", "unet", "vit_b_16", "two_towers", "convnext", "t5",
    "hand_gpt", "efficientnet_v2", "qwen2", "lstm", "swin", "dit", "mixer", "opt", "gemma2",
    "mistral", "modernbert", "vit",
)  # fmt: skip
EAGER = ("bf16", "fp32", "bf16 recompute=blocks")
COMPILED = ("bf16 compile=on",)
PROFILED = ("bf16", "fp32", "bf16 compile=on")
OPTIMIZER = "adamw lr=1e-4 clip=1 wd=0.01"
WARM_STEPS, STEPS, TIMED_SECONDS, MOST_STEPS = 3, 6, 0.5, 40
AT_ONCE = {"eager": 4, "compiled": 5}
EAGER_SHARE = 0.6  # of the time
LISTED = 400  # of the most telling operations of a profile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--forecast", action="store_true")
    parser.add_argument("--from", type=Path, dest="measured", default=RESULTS)
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "operations"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--seconds", type=float, default=130)
    parser.add_argument("--child", nargs=2, metavar=("NAME", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure_module(*options.child, options.out)
    elif options.measure:
        measure(options.only.split(","), options.out, options.seconds)
    elif options.forecast:
        sys.path.insert(0, str(HERE / "planner"))
        from forecast_operations import forecast_rows

        only = None if options.only == ",".join(NAMES) else options.only.split(",")
        out = options.out or options.measured.with_suffix(".md")
        forecast_rows(options.measured, options.calibration, out, options.keep, only)
    return 0


def measure(names: list[str], out: Path, seconds: float) -> None:
    """Every module in a process of its own: eagerly first, then compiled."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for kind, share in (("eager", EAGER_SHARE), ("compiled", 1.0)):
            run_children(names, kind, Path(folder), began + share * seconds)
            keep(Path(folder), out)


def run_children(names: list[str], kind: str, folder: Path, end: float) -> None:
    waiting, running = list(names), list[subprocess.Popen[bytes]]()
    while (waiting or running) and time.monotonic() < end:
        running = [child for child in running if child.poll() is None]
        while waiting and len(running) < AT_ONCE[kind]:
            running.append(start(waiting.pop(0), kind, folder))
        time.sleep(0.1)
    for child in running:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def start(name: str, kind: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--child", name, kind, "--out", str(folder)]
    settings = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "3", "STEPLADDER_PROBE": "off"}
    return subprocess.Popen(command, env=settings, start_new_session=True)


def keep(folder: Path, out: Path) -> None:
    """Everything that is known so far, in one file."""
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in lines(file)]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    head = {"date": time.strftime("%Y-%m-%d"), "device": device, "torch": torch.__version__}
    out.write_text(json.dumps({**head, "optimizer": OPTIMIZER, "rows": rows}) + "\n")
    for row in rows:
        print({k: v for k, v in row.items() if k not in ("kernels", "operations", "seconds")})


def lines(file: Path) -> list[str]:
    """Whole lines: the last may be cut where a process was ended."""
    return [line for line in file.read_text().split("\n")[:-1] if line]


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """The device to oneself."""
    with open(folder / "turn", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure_module(name: str, kind: str, folder: Path) -> None:
    from real_sizes import CASES

    torch.manual_seed(0)
    torch.set_num_threads(4)
    case = CASES[name]()
    batch = tree_map(torch.Tensor.pin_memory, case.batch) if on_gpu() else case.batch
    for plan in EAGER if kind == "eager" else COMPILED:
        row: dict[str, Any] = {"module": name, "plan": plan}
        module = copy.deepcopy(case.module)
        try:
            row |= measure_plan(module, batch, case.loss, plan, folder)
        except Exception as failed:  # a module may fail in any way, and the others go on
            row["failed"] = f"{type(failed).__name__}: {str(failed)[:200]}"
        with open(folder / f"{name}-{kind}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        gc.collect()
        if on_gpu():
            torch.cuda.empty_cache()


def measure_plan(module: Any, batch: Any, loss: Any, plan: str, folder: Path) -> dict[str, Any]:
    import stepladder as sl

    def climbed() -> Any:
        made = sl.climb(module, loss=loss, optimizer=OPTIMIZER, plan=plan, sample=batch)
        for _ in range(WARM_STEPS):
            report = made.step(batch)
        float(report.loss)
        return made

    if "compile" in plan:  # beside others: the compiler needs no device
        run = climbed()
        with turn(folder):
            return timed(run, batch, plan)
    with turn(folder):
        return timed(climbed(), batch, plan)


def timed(run: Any, batch: Any, plan: str) -> dict[str, Any]:
    settled = str(run.plan)
    run.step(batch)
    synchronize()
    seconds, asked, began = [], [], time.perf_counter()
    while len(seconds) < STEPS or time.perf_counter() - began < TIMED_SECONDS:
        each, hosts = queue_of_steps(run, batch)
        seconds += each
        asked += hosts
        if len(seconds) >= MOST_STEPS:
            break
    row = {
        "settled": settled, "step_seconds": statistics.median(seconds), "seconds": seconds,
        "asked_seconds": statistics.median(asked),
    }  # fmt: skip
    if on_gpu():
        row["allocated_bytes"] = torch.cuda.max_memory_allocated()
    return {**row, **(profiled(run, batch) if plan in PROFILED else {})}


def queue_of_steps(run: Any, batch: Any, count: int = 3) -> tuple[list[float], list[float]]:
    """Seconds from the end of a step to the end of the next, and of asking for it."""
    marks, asked = [mark()], []
    for _ in range(count):
        began = time.perf_counter()
        run.step(batch)
        asked.append(time.perf_counter() - began)
        marks.append(mark())
    synchronize()
    return [between(a, b) for a, b in pairwise(marks)], asked


def profiled(run: Any, batch: Any) -> dict[str, Any]:
    """Kernels by name, and operations by shape, of one step."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu() else [])]
    with profile(activities=kinds, record_shapes=True) as found:
        run.step(batch)
        synchronize()
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
        "busy_seconds": 1e-6 * sum(spent for _, spent in kernels.values()),
        "kernels": sorted(([k, *v] for k, v in kernels.items()), key=lambda k: -k[2])[:LISTED],
        "operations": listed[:LISTED],
    }


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


if __name__ == "__main__":
    raise SystemExit(main())
