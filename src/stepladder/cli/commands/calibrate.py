"""Measure this machine, so that plans are forecast by what it does and not by what is usual.

Times matrix products by shape and type, attention, streaming, the optimizer's update and how fast
work is handed over; under two minutes. The result is kept in the user's cache folder, where 'plan',
'train' and plan="auto" find it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json, table
from stepladder.errors import RecordError
from stepladder.record import Calibration, calibration_path

if TYPE_CHECKING:
    import torch

SECONDS = 90.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="keep it here, not in the cache folder")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="at most so many")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print all of it, timings too")


def run(options: argparse.Namespace) -> int:
    from stepladder.world import pick_device

    if not options.seconds > 0:
        raise RecordError("seconds", f"{options.seconds:g} is no time to measure in", "Use 60.")
    found = measure(pick_device(options.device), options.seconds)
    path = Path(options.out) if options.out else calibration_path(found.device)
    found = with_known_links(found, path)
    keep(found, path)
    if options.json:
        as_json({**asdict(found), "path": str(path)})
    else:
        table(f"{found.device}, measured", ["what", "rate"], rows(found))
        print(f"Kept in {path}")
    return 0 if found.matrix_flops_per_second else 1


def measure(device: torch.device, seconds: float) -> Calibration:
    from stepladder.calibrate import calibrate

    with progress() as show:
        return calibrate(device, seconds, show)


def with_known_links(found: Calibration, path: Path) -> Calibration:
    """The links 'stepladder bench collectives --keep' measured, which this does not measure."""
    try:
        known = Calibration.load(path) if path.exists() else Calibration()
    except RecordError:  # damaged: what is written now mends it
        return found
    return replace(
        found,
        inside_bytes_per_second=known.inside_bytes_per_second,
        inside_latency_seconds=known.inside_latency_seconds,
        between_bytes_per_second=known.between_bytes_per_second,
    )


def keep(found: Calibration, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise RecordError(
            "calibration",
            f"{path.parent} cannot be made ({refused.strerror})",
            "Name another file with --out.",
        ) from refused
    found.save(path)


def rows(found: Calibration) -> list[list[Any]]:
    """Each number with its unit."""
    shown: list[list[Any]] = []
    for compute, rate in found.matrix_flops_per_second.items():
        edges = found.matrix_edges.get(compute, 0.0)
        shown.append([f"products in {compute}", f"{tera(rate)}, operands moved {edges:.2f} times"])
    for compute, rate in found.attention_flops_per_second.items():
        shown.append([f"attention in {compute}", tera(rate)])
    for name, moved in (
        ("streaming", found.bandwidth_bytes_per_second),
        ("optimizer's update", found.optimizer_bytes_per_second),
    ):
        shown.append([name, None if moved is None else f"{moved / 1e9:,.4g} GB/s"])
    launch, context = found.launch_seconds, found.context_bytes
    shown.append(["handing over a kernel", None if launch is None else f"{launch * 1e6:.3g} µs"])
    if found.inside_bytes_per_second is not None:
        hop = (found.inside_latency_seconds or 0.0) * 1e6
        rate = found.inside_bytes_per_second / 1e9
        shown.append(["collectives inside a node", f"{rate:,.4g} GB/s, {hop:.3g} µs a hop"])
    if context is not None:
        shown.append(["memory of an idle process", f"{context / 2**20:.0f} MiB"])
    return shown


def tera(rate: float) -> str:
    return f"{rate / 1e12:,.4g} TFLOP/s"


@contextmanager
def progress() -> Iterator[Callable[[str, float], None] | None]:
    """A bar on a terminal; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what)
