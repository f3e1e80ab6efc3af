"""Look at this machine: devices, memory, versions, what each precision may use, what works.

Every check is tried, not assumed. A machine without a GPU is not a failure. With --device, any
device of the table instead: its memory hierarchy, its multiprocessors, and how many blocks fit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.memory_hierarchy import show_device
from stepladder.cli.results.tables import as_json, gib, table
from stepladder.errors import PlanError

if TYPE_CHECKING:
    from stepladder.world import MachineCheck
    from stepladder.world.machine.machine import DetectedMachine
    from stepladder.world.machine.precision_support import PrecisionSupport

PACKAGES = {
    "triton": "kernels on a GPU; comes with torch's CUDA build",
    "transformers": "Hugging Face models; pip install 'stepladder[hf]'",
    "peft": "adapters; pip install 'stepladder[hf]'",
    "torchao": "fp8 and quantised optimizers; pip install torchao",
    "liger-kernel": "fused kernels to compare with; pip install liger-kernel",
    "nvidia-ml-py": "power and clocks; pip install 'stepladder[gpu]'",
    "starlette": "the live page; pip install 'stepladder[watch]'",
    "ray": "launching on Ray; pip install 'stepladder[ray]'",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="leave out torch.compile, the slow one"
    )
    parser.add_argument(
        "--limit", type=float, default=180, metavar="SECONDS", help="time for each check (180)"
    )
    parser.add_argument(
        "--device",
        dest="device_name",
        metavar="NAME",
        help="memory and multiprocessors of H100-80GB, or of 'here'",
    )
    parser.add_argument(
        "--block", metavar="WORDS", help="with --device: how many fit; 'threads=256 registers=64'"
    )


def run(options: argparse.Namespace) -> int:
    """Show this machine; 1 if a check failed. Or show one device, and nothing is tried."""
    if options.block and not options.device_name:
        raise PlanError("--block", "no device is named for it", "Add --device H100-80GB, or here.")
    if options.device_name:
        return show_device(options)
    from stepladder.world import detect_machine
    from stepladder.world.machine.machine_checks import FAILED
    from stepladder.world.machine.precision_support import precision_support

    machine = detect_machine()
    precisions = precision_support(machine)
    if not options.limit > 0:
        problem = f"{options.limit:g} is not a time for each check"
        raise PlanError("limit", problem, "Use a number of seconds above 0, such as 180.")
    checks = make_checks(quick=options.quick, limit_seconds=options.limit)
    if options.json:
        as_json(report(machine, precisions, checks))
    else:
        draw(machine, precisions, checks)
    return int(any(check.state == FAILED for check in checks))


def make_checks(*, quick: bool, limit_seconds: float) -> list[MachineCheck]:
    from stepladder.world.machine.machine_checks import try_check

    names = chosen(quick=quick)
    checks = []
    for number, name in enumerate(names, start=1):
        with saying(f"checking {name} ({number} of {len(names)})"):
            checks.append(try_check(name, limit_seconds))
    return checks


def chosen(*, quick: bool) -> list[str]:
    from stepladder.world.machine.machine_checks import CHECKS

    return [name for name in CHECKS if not (quick and name == "torch.compile")]


@contextmanager
def saying(words: str) -> Iterator[None]:
    """Show what is being done, to a person only: a pipe gets no progress."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


def packages() -> dict[str, str | None]:
    return {name: installed(name) for name in PACKAGES}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def report(
    machine: DetectedMachine, precisions: tuple[PrecisionSupport, ...], checks: list[MachineCheck]
) -> dict[str, Any]:
    """Gather everything as plain values."""
    facts = asdict(machine) | {
        "cluster": str(machine.cluster),
        "assumptions": machine.cluster.assumptions,
        "cpu_flags": sorted(machine.cpu_flags),
        "seen": [asdict(card) | {"known": card.known} for card in machine.seen],
    }
    return {
        "machine": facts,
        "packages": packages(),
        "precisions": [asdict(row) for row in precisions],
        "checks": [asdict(check) for check in checks],
    }


def draw(
    machine: DetectedMachine, precisions: tuple[PrecisionSupport, ...], checks: list[MachineCheck]
) -> None:
    table("Machine", ["what", "is"], machine_rows(machine))
    table(
        f"Precisions on {machine.cluster.device}",
        ["precision", "supported", "peak TFLOP/s", "why"],
        [[row.precision, row.answer, peak_words(row, machine), row.because] for row in precisions],
    )
    table("Packages", ["package", "version", "for"], package_rows())
    table(
        "Checks",
        ["check", "state", "seconds", "seen", "fix"],
        [[c.name, c.state, f"{c.seconds:.1f}", c.seen, c.fix] for c in checks],
    )
    print(verdict(checks))


def verdict(checks: list[MachineCheck]) -> str:
    from stepladder.world.machine.machine_checks import FAILED

    failed = [check.name for check in checks if check.state == FAILED]
    if failed:
        return f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}."
    return f"All {len(checks)} checks passed or had nothing to try."


def machine_rows(machine: DetectedMachine) -> list[list[object]]:
    rows: list[list[object]] = [["cluster", machine.cluster]]
    rows += [["assumed", sentence] for sentence in machine.cluster.assumptions]
    rows += [[f"device {index}", device_words(card)] for index, card in enumerate(machine.seen)]
    if not machine.seen:
        rows.append(["device", "no GPU; everything runs on the processor"])
    cores = f"{machine.physical_cores} cores, {machine.logical_cores} threads"
    return [
        *rows,
        ["processor", f"{machine.cpu}, {cores}"],
        ["host memory", gib(machine.host_memory_bytes)],
        ["driver", machine.driver or "none"],
        ["python", machine.python],
        ["torch", machine.torch],
        ["runtime", machine.runtime or "processor only"],
        ["NCCL", machine.nccl or "none"],
        ["backends", ", ".join(machine.backends) or "none"],
    ]


def device_words(card: Any) -> str:
    known = f"= {card.device}" if card.known else "unknown device: not in the table, so no peaks"
    return f"{card.name}, {gib(card.memory_bytes)}, {card.architecture}, {known}"


def peak_words(row: PrecisionSupport, machine: DetectedMachine) -> object:
    if row.answer != "yes":
        return "-"
    if row.peak is not None:
        return row.peak / 1e12
    return "unknown" if machine.cluster.device.is_cpu else "unknown device"


def package_rows() -> list[list[object]]:
    return [[name, found or "not installed", PACKAGES[name]] for name, found in packages().items()]
