"""How fast `plan="auto"` trains modules of other projects, against the loop a user would write.

    python benchmarks/zoo_gpu.py [--only NAME,NAME] [--arms ARM,ARM] [--workers N] [--seconds S]
    python benchmarks/zoo_gpu.py --table [--merge FILE]

Arms: "hand" is a loop with autocast to bf16, torch.compile of forward and loss together, gradient
clipping and fused AdamW; "hand max" compiles with max-autotune-no-cudagraphs, "hand channels-last"
stores images and convolutions channels-last, "hand +NAME" switches on an option of Inductor. "auto"
is stepladder with `sample=`; any other arm is a plan's text. All arms of a module start from the
same weights, learn from the same batches, and take turns. A row is written to results/zoo_gpu.json
as soon as its module is done.

Every module has a process of its own, and --workers of them compile beside each other. What is
timed, the turns as well as auto's own trials, has the machine to itself: all other processes are
stopped meanwhile (zoo/quiet.py). Since they wait for each other, trials may then take 75 seconds
(--tune) in place of 60, and matmuls' algorithms are timed for a fifth of the usual time. Generated
kernels are not named after their place in a graph, so that graphs share those they have in common.
When --seconds are over no further row is made. What every process did when stands in
results/zoo_gpu.log. No choice of an earlier start is remembered. With --table
only the table of the rows that are there, results/zoo_gpu.md, and its plot are made; --merge takes
rows of another file in.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from loops import DEVICE, Ours, make_loop, read
from quiet import Quiet
from real_sizes import CASES, Case
from speed_table import keep, read_rows, show

RESULTS = Path(__file__).parent / "results" / "zoo_gpu.json"
TURNS, TURN_SECONDS, LOSSES = 5, 0.25, 50
TUNE_BESIDE = 75.0  # seconds for trials where other modules compile at the same time
GIB = 2**30
FREE_GIB = 30  # on the GPU, without which no further module is begun, and no arm for a while
WAIT_SECONDS = 45.0  # for that much, before an arm begins all the same
# What stepladder times when it tries plans; the benchmark has it done undisturbed.
TIMED = tuple(f"stepladder.train.tuning.trial.{name}" for name in ("take_turns", "host_seconds_of"))
SHORTER = {  # seconds
    "stepladder.kernels.matmul.autotune.SETTLE": 1e-2,
    "stepladder.kernels.matmul.autotune.LONG": 2e-2,
    "stepladder.train.tuning.trial.TURN_SECONDS": 0.06,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--arms", default="hand,hand channels-last,auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--tune", type=float, help="seconds for the trials of auto")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--merge", type=Path, metavar="FILE")
    parser.add_argument("--crowd", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    modules, arms = options.only.split(","), options.arms.split(",")
    if options.crowd:
        work(modules[0], arms, options.results, options.crowd)
        return 0
    if options.merge:
        keep(read_rows(options.merge), options.results)
    if not options.table:
        with TemporaryDirectory() as folder:
            tune = options.tune or (TUNE_BESIDE if options.workers > 1 else None)
            benchmark = Benchmark(
                options.arms, options.workers, tune, options.results, Path(folder)
            )
            benchmark.measure_all(modules, time.monotonic() + options.seconds)
    show(options.results, LOSSES)
    return 0


@dataclass(slots=True)
class Benchmark:
    """Modules in processes of their own, so many at a time."""

    arms: str
    workers: int
    tune: float | None
    results: Path
    folder: Path

    def measure_all(self, modules: list[str], end: float) -> None:
        quiet, waiting = Quiet(self.folder), list(modules)
        running: dict[str, subprocess.Popen[bytes]] = {}
        while (waiting or running) and time.monotonic() < end:
            quiet.release_after()
            for name, process in list(running.items()):
                if process.poll() is not None:
                    quiet.leave(running.pop(name).pid)
                    self.take_rows(name)
            if waiting and len(running) < self.workers and has_room():
                with quiet.locked():
                    running[waiting[0]] = process = self.start(waiting[0])
                    quiet.enter(process.pid)
                waiting.pop(0)
            time.sleep(0.1)
        for name, process in running.items():
            print(f"{name}: not finished: {' | '.join(self.last_lines(name))}", flush=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        logs = [self.log_of(name).read_text(errors="replace") for name in self.begun()]
        self.results.with_suffix(".log").write_text("".join(logs))
        if waiting:
            print(f"not begun: {', '.join(waiting)}", flush=True)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        threads = str(max(2, 2 * (os.cpu_count() or 2) // self.workers))
        budget = {"TUNE": f"tune={self.tune:g}"} if self.tune else {}
        around = {
            **os.environ, **budget, "TORCHINDUCTOR_COMPILE_THREADS": threads,
            "STEPLADDER_PROBE": "off",  # forecasts need it, and trials do not
            "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES": "0",
            "XDG_CACHE_HOME": str(self.folder), "OMP_NUM_THREADS": threads,
        }  # fmt: skip
        command = [sys.executable, __file__, "--only", name, "--arms", self.arms]
        command += ["--crowd", str(self.folder), "--results", str(self.rows_of(name))]
        with self.log_of(name).open("wb") as log:
            return subprocess.Popen(
                command, env=around, start_new_session=True, stdout=log, stderr=log
            )

    def rows_of(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def take_rows(self, name: str) -> None:
        rows = read_rows(self.rows_of(name))
        keep(rows, self.results)
        for row in rows:
            print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
        if not rows:
            print(f"{name}: ended without a row: {' | '.join(self.last_lines(name))}", flush=True)

    def begun(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.log"))

    def last_lines(self, name: str) -> list[str]:
        return self.log_of(name).read_text(errors="replace").splitlines()[-4:]


def has_room() -> bool:
    """Whether a further module or arm will find memory on the GPU, as far as one can see."""
    return DEVICE.type != "cuda" or torch.cuda.mem_get_info()[0] > FREE_GIB * GIB


def work(name: str, arms: list[str], results: Path, folder: Path) -> None:
    """Measure one module in this process, beside others that do the same."""
    quiet = Quiet(folder)
    with ExitStack() as changes:
        say = lambda tuner, line: log(f"{name}: {line}", quiet)  # noqa: E731
        changes.enter_context(patch("stepladder.train.tuning.tuner.Tuner.say", say))
        for timed in TIMED:
            module, _, function = timed.rpartition(".")
            whole = getattr(__import__(module, fromlist=[function]), function)
            changes.enter_context(patch(timed, quiet.wrap(whole)))
        for constant, seconds in SHORTER.items():
            changes.enter_context(patch(constant, seconds))
        case = pinned_case(name)
        log(f"{name}: the module is made", quiet)
        keep(measure(name, case, arms_for(case, arms), quiet), results)


def log(what: str, quiet: Quiet) -> None:
    """A line for who reads why a module took so long."""
    spent = f"processor {time.process_time():.0f} s, {quiet}"
    print(f"{time.strftime('%T')} {what}; {spent}", file=sys.stderr, flush=True)


def pinned_case(name: str) -> Case:
    torch.manual_seed(0)
    case = CASES[name]()
    if DEVICE.type != "cuda":
        return case
    batch, later = tree_map(torch.Tensor.pin_memory, (case.batch, case.later))
    return Case(case.module, batch, case.loss, later)


def arms_for(case: Case, arms: list[str]) -> list[str]:
    """Without what makes no difference to this module: an entry that cuts patches is no net."""
    convolutions = sum(isinstance(part, torch.nn.Conv2d) for part in case.module.modules())
    return [arm for arm in arms if convolutions > 2 or arm != "hand channels-last"]


def measure(name: str, case: Case, arms: list[str], quiet: Quiet) -> list[dict[str, Any]]:
    """Time every arm of one module; a row for each."""
    rows = {arm: {"module": name, "arm": arm} for arm in arms}
    loops: dict[str, Any] = {}
    for arm, row in rows.items():
        before = allocated()
        try:
            loops[arm] = prepare(arm, case, row), allocated() - before
        except Exception as error:  # a module may fail in any way, and the others go on
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        log(f"{name}: {arm} is ready", quiet)
    times: dict[str, list[float]] = {arm: [] for arm in loops}
    with quiet.alone():
        for _ in range(TURNS):
            for arm, (loop, resident) in loops.items():
                seconds, peak = take_turn(loop, cycle(case.batches), len(case.batches))
                times[arm].append(seconds)
                own = peak - (allocated() - resident)
                rows[arm]["gib"] = round(max(own / GIB, rows[arm].get("gib", 0)), 2)
    log(f"{name}: turns are taken", quiet)
    gpu = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "no GPU"
    for arm, row in rows.items():
        if times.get(arm):
            row["ms"] = round(1e3 * statistics.median(times[arm]), 3)
        row |= {"torch": torch.__version__, "gpu": gpu, "date": time.strftime("%Y-%m-%d")}
    return list(rows.values())


def prepare(arm: str, case: Case, row: dict[str, Any]) -> Any:
    """The arm's loop after its first steps, whose losses and seconds go into the row."""
    began = time.monotonic()
    while not has_room() and time.monotonic() < began + WAIT_SECONDS:
        time.sleep(0.5)
    began = time.monotonic()
    loop = make_loop(arm, case, os.environ.get("TUNE", ""))
    batches = cycle(case.batches)
    read(loop.step(next(batches)))
    row["first_step_seconds"] = round(time.monotonic() - began, 2)
    row["losses"] = [read(loop.step(batch)) for batch in islice(batches, LOSSES)]
    if isinstance(loop, Ours):
        row |= {"plan": str(loop.run.plan), "because": loop.run.because, "events": loop.run.events}
    return loop


def allocated() -> int:
    gc.collect()
    if DEVICE.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # for the other processes
    return torch.cuda.memory_allocated()


def take_turn(loop: Any, batches: Iterator[Any], lengths: int) -> tuple[float, int]:
    """Seconds of a step, and the most memory that was in use; each length as often as any other."""
    synchronize()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began, steps = time.perf_counter(), 0
    while steps < 4 or steps % lengths or time.perf_counter() - began < TURN_SECONDS:
        loop.step(next(batches))
        steps += 1
        if steps % 4 == 0:
            synchronize()  # so that a queue of steps does not outlast the turn
    synchronize()
    peak = torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 0
    return (time.perf_counter() - began) / steps, peak


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main())
