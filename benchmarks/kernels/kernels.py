"""Our kernels beside eager torch and torch.compile, forward and backward, on this GPU.

    python benchmarks/kernels/kernels.py [--json PATH] [--timer device|host] [--no-compile]
    python benchmarks/kernels/kernels.py --sweep      # which blocks and warps suit this GPU

Each kernel is first compared with torch in float64. `device` times leave out how long Python takes
to ask; `host` times (triton.testing.do_bench) include it when the device has to wait for it.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import torch

from stepladder.bench import measure_kernels
from stepladder.bench.kernel_timings import (
    CONTESTS,
    KernelCase,
    KernelTiming,
    build,
    copy_gb_per_s,
    device_milliseconds,
    run,
)
from stepladder.errors import StepladderError

RESULTS = Path(__file__).parents[1] / "results" / "kernels.json"
SWEPT = {  # module: (constants to try together, cases to try them on)
    "triton_cross_entropy": (
        {"BLOCK": (2048, 4096, 8192, 16384), "WARPS": (4, 8, 16)},
        ("cross_entropy", "cross_entropy_in_place"),
        ((8192, 50304), (4096, 128256)),
    ),
}


def host_milliseconds(work) -> float:
    """Median of triton.testing.do_bench: what a caller with an idle device waits."""
    from triton.testing import do_bench

    return do_bench(work, return_mode="median")


def cell(value: float | None, form: str = ".3f") -> str:
    return f"{'-' if value is None else format(value, form):>9}"


def gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / 2**30


def header() -> str:
    times, rates = ("eager ms", "compiled", "ours ms"), ("GB/s", "of copy")
    names = (*times, *rates, "eager GiB", "ours GiB", "error")
    return f"{'kernel':23}{'shape':>17} {'type':>5}" + "".join(f"{name:>10}" for name in names)


def line(row: KernelTiming, copy: float | None) -> str:
    share = row.ours_gb_per_s / copy if copy and row.ours_gb_per_s else None
    cells = (
        *map(cell, (row.eager_ms, row.compiled_ms, row.ours_ms)),
        cell(row.ours_gb_per_s, ".0f"),
        cell(share, ".0%"),
        cell(gib(row.eager_peak_bytes), ".2f"),
        cell(gib(row.ours_peak_bytes), ".2f"),
        cell(row.max_error, ".1e"),
    )
    shape = "x".join(map(str, row.shape))
    return f"{row.kernel:23}{shape:>17} {row.dtype:>5} {' '.join(cells)}  {row.problem}".rstrip()


def copy_rate() -> float | None:
    try:
        return copy_gb_per_s()
    except Exception as error:
        print(f"copy bandwidth: {type(error).__name__}: {error}")
        return None


def compare(options: argparse.Namespace) -> int:
    """Print the table and write it down; 1 if any kernel is wrong or failed."""
    timer = host_milliseconds if options.timer == "host" else device_milliseconds
    rows = measure_kernels(
        timer=timer, compiled=not options.no_compile, budget_seconds=options.budget
    )
    copy = copy_rate()
    print(header(), *(line(row, copy) for row in rows), sep="\n")
    write(options.json, rows, copy, options.timer)
    return int(any(row.ours_ms is None for row in rows))


def write(path: Path, rows: list[KernelTiming], copy: float | None, timer: str) -> None:
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "timer": timer,
        "copy_gb_per_s": copy,
        "rows": [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\ncopy {cell(copy, '.0f').strip()} GB/s on {result['device']}; written to {path}")


def settings(grid: dict[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values))


def sweep() -> int:
    """Time our kernels under each setting of their constants, fastest first."""
    for module_name, (grid, names, shapes) in SWEPT.items():
        module = import_module(f"stepladder.kernels.triton.{module_name}")
        for name, shape in itertools.product(names, shapes):
            arguments = build(KernelCase(name, shape), torch.device("cuda"))
            times = []
            for setting in settings(grid):
                vars(module).update(setting)
                try:
                    ms = device_milliseconds(lambda n=name, a=arguments: run(CONTESTS[n].ours, a))
                except Exception as error:
                    print(f"{name} {shape} {setting}: {type(error).__name__}")
                    continue
                times.append((ms, setting))
            for ms, setting in sorted(times, key=lambda pair: pair[0])[:5]:
                print(f"{name:23}{shape!s:>17} {ms:8.4f} ms  {setting}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers are written")
    parser.add_argument("--timer", choices=("device", "host"), default="device")
    parser.add_argument("--budget", type=float, default=70.0, help="seconds; later cases wait")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--sweep", action="store_true", help="try blocks and warps instead")
    options = parser.parse_args()
    try:
        if options.sweep and torch.cuda.is_available():
            return sweep()
        return compare(options)
    except StepladderError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
