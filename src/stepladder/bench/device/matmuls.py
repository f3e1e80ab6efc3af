"""One matmul written in several ways, from three loops to the library, and copies between memories.

On a processor: three loops in Python, one loop around a row times a matrix, torch's matmul. On a
GPU: a lane an element, which reads two numbers for each multiplication and addition; tiles in the
matrix units, which use each number that they read hundreds of times; torch's matmul, which is
cuBLAS. Each is compared with float64 before it is timed. The
peak is that of the library's fastest square matmul here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepladder.hardware.chips import WARP, find_chip
from stepladder.hardware.occupancy import Block, Occupancy, occupancy
from stepladder.kernels.backend import triton

from .operations import COPIED_BYTES, SQUARES, draw, square
from .roofline import table_row, time_operation
from .stopwatch import Work, fastest_seconds

if triton is not None:
    from stepladder.kernels.triton import triton_matmul as programs

LOOPED = 64  # the side of what Python multiplies
COMPARED = 4096  # of what the programs multiply
BOUNDS = {"fp32": 1e-5, "bf16": 1e-2}  # error norm against float64, relative
Multiply = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, slots=True)
class MatmulVariant:
    """One way of writing a product of square matrices."""

    name: str
    size: int
    compute: str
    multiply: Multiply  # returns the product, or it and the compiled program


@dataclass(frozen=True, slots=True)
class MatmulTiming:
    """One way, checked and timed."""

    name: str
    size: int
    compute: str
    seconds: float | None = None
    share_of_peak: float | None = None  # of the fastest square matmul of that type here
    share_of_stated: float | None = None  # of the device table's
    times_first: float | None = None  # FLOP/s over those of the first way
    error: float | None = None  # norm of the difference to float64, relative
    occupancy: Occupancy | None = None  # of a program of ours, on a known multiprocessor
    problem: str = ""

    @property
    def flops_per_second(self) -> float | None:
        return 2.0 * self.size**3 / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class CopyTiming:
    """A copy from one memory to another."""

    name: str
    bytes: int  # that pass the link; within a memory what is read and what is written
    seconds: float
    stated: float | None = None  # bytes a second by the device table

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds


def three_loops(left: Tensor, right: Tensor) -> Tensor:
    """The definition, number by number."""
    rows, columns = left.tolist(), list(zip(*right.tolist()))
    product = []
    for row in rows:
        line = []
        for column in columns:
            total = 0.0
            for x, y in zip(row, column):
                total += x * y
            line.append(total)
        product.append(line)
    return torch.tensor(product)


def one_loop(left: Tensor, right: Tensor) -> Tensor:
    """The inner loops left to torch: a call for each row."""
    return torch.stack([torch.mv(right.T, row) for row in left])


def ways_here(device: torch.device) -> list[MatmulVariant]:
    """From the slowest to the library, all on matrices of one size."""
    if device.type != "cuda":
        return [
            MatmulVariant("three loops in Python", LOOPED, "fp32", three_loops),
            MatmulVariant("one loop, torch.mv inside", LOOPED, "fp32", one_loop),
            MatmulVariant("torch.mm", LOOPED, "fp32", torch.mm),
        ]
    library = MatmulVariant("torch.mm", COMPARED, "bf16", torch.mm)
    if triton is None:
        return [library]
    tile = programs.tile_for(device)
    return [
        MatmulVariant("an element a lane", COMPARED, "bf16", programs.by_element),
        MatmulVariant("a tile a program", COMPARED, "bf16", partial(programs.by_tile, tile=tile)),
        library,
    ]


def measure_matmuls(device: torch.device, budget: float) -> Iterator[MatmulTiming]:
    """One row a way, as each is done, and the fastest square matmul of all: the peak."""
    ways = ways_here(device)
    compute = ways[0].compute
    best = fastest_square(device, compute, budget)
    known = table_row(device)
    peak, stated = best.flops_per_second or 0.0, known.peak(compute) if known else None
    slowest: float | None = None
    for row in (*(measure_variant(way, device, budget) for way in ways), best):
        rate = row.flops_per_second
        slowest = slowest or rate
        if rate is None or slowest is None:
            yield row
            continue
        yield replace(
            row, share_of_peak=rate / peak, share_of_stated=rate / stated if stated else None,
            times_first=rate / slowest,
        )  # fmt: skip


def fastest_square(device: torch.device, compute: str, budget: float) -> MatmulTiming:
    """The library's product of the size that it computes at the highest rate."""
    rows = []
    for size in SQUARES[device.type]:
        seconds = time_operation(square(size, compute), device, budget)
        rows.append(MatmulTiming("torch.mm, fastest size", size, compute, seconds=seconds))
    return max(rows, key=lambda row: row.flops_per_second or 0.0)


def measure_variant(way: MatmulVariant, device: torch.device, budget: float) -> MatmulTiming:
    left, right = (draw((way.size, way.size), way.compute, device) for _ in range(2))
    answer = way.multiply(left, right)
    product, compiled = answer if isinstance(answer, tuple) else (answer, None)
    exact = left.double() @ right.double()
    error = float((product.double() - exact).norm() / exact.norm())
    row = MatmulTiming(way.name, way.size, way.compute, error=error)
    if not error < BOUNDS[way.compute]:
        return replace(row, problem=f"wrong: off by {error:.1e} of the product")
    seconds = fastest_seconds(lambda: way.multiply(left, right), device, budget)
    return replace(row, seconds=seconds, occupancy=occupancy_of(compiled, device))


def occupancy_of(compiled: Any, device: torch.device) -> Occupancy | None:
    """How many blocks of a compiled program fit here; None where the compiler or chip is silent."""
    registers = getattr(compiled, "n_regs", None)
    metadata = getattr(compiled, "metadata", None)
    known = table_row(device)
    chip = find_chip(known) if known else None
    if not registers or metadata is None or chip is None:
        return None
    return occupancy(Block(WARP * metadata.num_warps, registers, metadata.shared),
                     chip.multiprocessor)  # fmt: skip


def measure_copies(device: torch.device, budget: float) -> list[CopyTiming]:
    """Between host and device, from memory that may be paged out and from pinned; and within."""
    size = COPIED_BYTES[device.type]
    host = torch.ones(size, dtype=torch.uint8)  # written: a fresh page has no memory behind it
    there, beside = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    if device.type != "cuda":
        works: list[tuple[str, int, float | None, Work]] = [
            ("host memory to itself", 2 * size, None, partial(there.copy_, host))
        ]
    else:
        known = table_row(device)
        link, own = ((known.host_bytes_per_second, known.bandwidth_bytes_per_second)
                     if known else (None, None))  # fmt: skip
        pinned = torch.ones(size, dtype=torch.uint8).pin_memory()
        works = [
            ("host to device, pageable", size, link, partial(there.copy_, host)),
            ("host to device, pinned", size, link, partial(there.copy_, pinned, non_blocking=True)),
            ("device to host, pinned", size, link, partial(pinned.copy_, there, non_blocking=True)),
            ("device to itself", 2 * size, own, partial(beside.copy_, there)),
        ]
    return [CopyTiming(name, moved, fastest_seconds(work, device, budget), stated)
            for name, moved, stated, work in works]  # fmt: skip
