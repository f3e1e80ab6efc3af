"""Step time of modules of other projects on a GPU, and its forecast by operations.

    python benchmarks/time_gpu.py --measure --out F.json [--calibrate C.json] [--only NAME,...]
    python benchmarks/time_gpu.py --forecast --from F.json --calibration C.json --out F.md

The last needs no GPU.

Each module has a process of its own. First the machine is calibrated, with nothing beside; then all
processes build their modules and compile beside each other; then they are asked, one at a time, for
the time of one plan, with nothing else on the device or the host. Rows are written as soon as they
are known, so that whatever --seconds allow is there. A step is timed by CUDA events in a queue that
is never waited for. What the host takes for a step is read twice: asking an idle device for one,
and steps of a single row, whose operations are the same and wait for the host. One more step is
profiled: its kernels, and its operations by shape.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from timed_steps import OPTIMIZER

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "time_gpu.json"
CALIBRATION = HERE / "results" / "time_gpu_calibration.json"
NAMES = (
    "gpt2", "bert", "unet", "resnet50", "llama", "two_towers", "vit_b_16", "lstm", "t5", "dit",
    "opt", "hand_gpt", "encoder_of_lengths", "mixer", "qwen2", "modernbert", "convnext", "swin",
    "mistral", "gemma2", "vit", "efficientnet_v2",
)  # fmt: skip
COMPILED = "bf16 compile=on"
Rounds = tuple[tuple[str, ...], ...]
EAGER: Rounds = (("bf16", "bf16 recompute=blocks"), ("fp32",))
ROUNDS: Rounds = ((COMPILED, "bf16"), ("bf16 recompute=blocks",), ("fp32",))
SINGLE = ("gpt2", "bert", "unet", "resnet50", "llama", "vit_b_16", "dit", "lstm")  # in fp32 too
AT_ONCE, COMPILE_THREADS = 8, 2
PREPARE_SHARE = 0.5  # of the time that calibration leaves
BUILD_SECONDS = 35.0  # that processes may take before timing begins
ROW_SECONDS = 25.0  # at most
CALIBRATE_SECONDS = 40.0
# Types and ways of recomputing that no plan here has.
UNASKED = ("fp16", "fp8", "selective", "pure selective")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--forecast", action="store_true")
    parser.add_argument("--from", type=Path, dest="measured", default=RESULTS)
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument("--calibrate", type=Path, help="calibrate first, and keep it here")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "operations"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--eager", action="store_true", help="leave out what is compiled")
    options = parser.parse_args()
    if options.measure:
        began = time.monotonic()
        if options.calibrate:
            write_calibration(options.calibrate)
        end = began + options.seconds
        rounds = EAGER if options.eager else ROUNDS
        measure(options.only.split(","), options.out or RESULTS, end, rounds)
    elif options.forecast:
        sys.path.insert(0, str(HERE / "planner"))
        from forecast_operations import forecast_rows

        only = None if options.only == ",".join(NAMES) else options.only.split(",")
        out = options.out or options.measured.with_suffix(".md")
        forecast_rows(options.measured, options.calibration, out, options.keep, only)
    return 0


def write_calibration(out: Path) -> None:
    """Of what the plans here need, in a process that holds the device for that time only."""
    command = [sys.executable, "-c", CALIBRATING, str(out), str(CALIBRATE_SECONDS), *UNASKED]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, timeout=2 * CALIBRATE_SECONDS)
    say(f"calibrated: {out}" if out.exists() else "not calibrated")


CALIBRATING = """
import sys
import torch
from pathlib import Path
from stepladder.calibrate import calibrate
from stepladder.calibrate.probes import probes_of
out, seconds, *left_out = sys.argv[1:]
device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
probes = [each for each in probes_of(device) if each.compute not in left_out]
calibrate(device, float(seconds), probes=probes).save(Path(out))
"""


class Worker:
    """A process that holds one module."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        command = [sys.executable, str(HERE / "zoo" / "timed_steps.py"), name, str(folder)]
        threads = str(COMPILE_THREADS)
        settings = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads,
                    "STEPLADDER_PROBE": "off"}  # fmt: skip
        with open(folder / f"{name}.err", "a") as errors:
            self.process = subprocess.Popen(
                command, env=settings, text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def built(self, end: float) -> bool:
        """Whether it is ready to be asked, waiting until then."""
        return self.answered("built", end)

    def ask(self, word: str, plan: str, end: float) -> bool:
        """Whether it has done so by then; if not, it is ended."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{word} {plan}\n")
            self.process.stdin.flush()
        except OSError:
            return False
        return self.answered("done", end)

    def answered(self, word: str, end: float) -> bool:
        timer = Timer(max(end - time.monotonic(), 0.01), self.kill)
        timer.start()
        try:
            assert self.process.stdout is not None
            return any(line.strip() == word for line in iter(self.process.stdout.readline, ""))
        finally:
            timer.cancel()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        if self.alive:
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self, end: float) -> None:
        """Let it read its profiles and go."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(max(end - time.monotonic(), 0.1))
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()
        self.process.wait()


def measure(names: Sequence[str], out: Path, end: float, rounds: Rounds) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        compiled = any(COMPILED in plans for plans in rounds)
        workers = (compiled_by if compiled else built_by)(names, folder, end)
        say("timing begins")
        try:
            for plans in rounds:
                time_round(workers, plans, folder, out, end)
        finally:
            with ThreadPoolExecutor(len(workers)) as pool:
                list(pool.map(lambda worker: worker.finish(end + 20), workers.values()))
            keep(folder, out)


def built_by(names: Sequence[str], folder: Path, end: float) -> dict[str, Worker]:
    """A process for each module, which has built it."""
    found = {name: Worker(name, folder) for name in names}
    until = min(end, time.monotonic() + BUILD_SECONDS)
    for worker in found.values():
        worker.built(until)
    return found


def compiled_by(names: Sequence[str], folder: Path, end: float) -> dict[str, Worker]:
    """A process for each module, which has compiled it where there was time."""
    now = time.monotonic()
    until = now + PREPARE_SHARE * (end - now)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(lambda name: prepare(name, folder, until), names)))
    late = [name for name, worker in found.items() if not worker.alive]
    return found | built_by(late, folder, end)


def prepare(name: str, folder: Path, until: float) -> Worker:
    began = time.monotonic()
    worker = Worker(name, folder)
    done = worker.built(until) and worker.ask("prepare", COMPILED, until)
    say(f"{name}: {'compiled' if done else 'not compiled'}, {time.monotonic() - began:.0f} s")
    return worker


def time_round(
    workers: dict[str, Worker], plans: Sequence[str], folder: Path, out: Path, end: float
) -> None:
    for name, worker in workers.items():
        for plan in plans:
            if plan == "fp32" and name not in SINGLE:
                continue
            if time.monotonic() > end - 5:
                say(f"{name} {plan}: no time was left")
            elif worker.alive:
                worker.ask("time", plan, min(end, time.monotonic() + ROW_SECONDS))
                keep(folder, out)


def keep(folder: Path, out: Path) -> None:
    """Everything that is known so far, in one file."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for row in map(json.loads, lines(file)):
            known = rows.setdefault((row["module"], row["plan"]), {})
            known.update(row)
            if "step_seconds" in row:  # which failed beside others, and not alone
                known.pop("failed", None)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    head = {"date": time.strftime("%Y-%m-%d"), "device": device, "torch": torch.__version__,
            "host": processor(), "cores": os.cpu_count(), "optimizer": OPTIMIZER}  # fmt: skip
    out.write_text(json.dumps({**head, "rows": list(rows.values())}) + "\n")


def lines(file: Path) -> list[str]:
    """Whole lines: the last may be cut where a process was ended."""
    return [line for line in file.read_text().split("\n")[:-1] if line]


def processor() -> str:
    told = Path("/proc/cpuinfo")
    names = [line for line in told.read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
