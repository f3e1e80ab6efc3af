"""Rung: a limit on the memory of the process, and recognising errors of failed allocations.

On a GPU the caching allocator enforces the limit. On a CPU the kernel does: `RLIMIT_DATA` counts
private writable memory, so it leaves out libraries and shared tensors, but it counts what is
reserved rather than what is touched. The limit is therefore set relative to the present: reserved
now, plus what the limit leaves above the resident size. A dispatch mode that counts tensors would
be exact, and would slow every operation; the kernel costs nothing.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path
from types import TracebackType

import torch

from stepladder.errors import OutOfMemory, PlanError

GIB = 2**30
STATUS = Path("/proc/self/status")
SIGNS = re.compile(  # as torch and the libraries under it word a failed allocation
    r"out of memory|not enough memory|(can.t|cannot) allocate memory|std::bad_alloc"
    r"|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
TRIED = re.compile(r"tried to allocate ([\d.]+) ?(\w+)", re.IGNORECASE)
RESERVE_CHUNK_BYTES = 8 * 2**20  # small enough to fill an allocator's reserve closely
RESERVE_MOST_BYTES = 8 * GIB  # an allocator that gives more has no reserve: nothing limits it
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on any device."""
    if isinstance(error, OutOfMemory | MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and bool(SIGNS.search(str(error)))


class MemoryLimit:
    """Within it the process cannot hold more than so many bytes on the device; a failed
    allocation leaves it as `OutOfMemory`."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes, self.device = num_bytes, device
        self._reserve: list[torch.Tensor] = []

    def __enter__(self) -> MemoryLimit:
        if self.device.type == "cuda":
            self._lower_cuda()
        else:
            self._lower_process()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.lift()
        if error is not None and not isinstance(error, OutOfMemory) and is_out_of_memory(error):
            raise self.exceeded(error) from error

    def exceeded(self, error: BaseException) -> OutOfMemory:
        tried = TRIED.search(str(error))
        asked = float(tried[1]) * UNITS.get(tried[2], 1) if tried else 0
        more = f" when {asked / GIB:.3g} GiB more were asked for" if tried else ""
        return OutOfMemory(
            "memory",
            f"the ceiling of {self.num_bytes / GIB:.3g} GiB was reached{more}",
            "Raise memory=, halve micro, or add recompute=blocks.",
        )

    def lift(self) -> None:
        """Give the process back the limit it had."""
        if self.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(self._before, self.device)
        else:
            resource.setrlimit(resource.RLIMIT_DATA, self._limits)
            self._reserve.clear()

    def _lower_cuda(self) -> None:
        total = torch.cuda.get_device_properties(self.device).total_memory
        if self.num_bytes > total:
            raise too_high(self.num_bytes, total)
        self._before = torch.cuda.get_per_process_memory_fraction(self.device)
        torch.cuda.set_per_process_memory_fraction(self.num_bytes / total, self.device)

    def _lower_process(self) -> None:
        sizes = process_sizes()
        if self.num_bytes <= sizes["VmRSS"]:
            raise too_low(self.num_bytes, sizes["VmRSS"])
        self._limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (sizes["VmData"], self._limits[1]))
        allowed, reserve = self.num_bytes - sizes["VmRSS"], take_reserve()
        inside = len(reserve) * RESERVE_CHUNK_BYTES  # can be had without asking the kernel
        self._reserve = reserve[: max(inside - allowed, 0) // RESERVE_CHUNK_BYTES]
        soft, hard = sizes["VmData"] + max(allowed - inside, 0), self._limits[1]
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # soft alone, so it can be lifted


def take_reserve() -> list[torch.Tensor]:
    """All that torch's allocator can still give without new memory from the kernel, unwritten."""
    taken: list[torch.Tensor] = []
    while len(taken) * RESERVE_CHUNK_BYTES < RESERVE_MOST_BYTES:
        try:
            taken.append(torch.empty(RESERVE_CHUNK_BYTES, dtype=torch.uint8))
        except RuntimeError:
            return taken
    return []


def process_sizes(status: Path = STATUS) -> dict[str, int]:
    """Bytes this process holds, by the kernel's names for them."""
    try:
        lines = status.read_text().splitlines()
    except OSError as missing:
        raise PlanError(
            "memory",
            f"a ceiling on the CPU reads {status}, which this system does not have",
            "Leave memory= out, or run on Linux.",
        ) from missing
    pairs = (line.split() for line in lines if line.startswith("Vm"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, *_ in pairs}


def too_high(asked: int, total: int) -> PlanError:
    return PlanError(
        "memory",
        f"a ceiling of {asked / GIB:.3g} GiB is above the device's {total / GIB:.3g} GiB",
        f"Use at most {int(total / GIB * 100) / 100:g}GiB, or leave it out.",
    )


def too_low(asked: int, resident: int) -> PlanError:
    least = -(-resident * 10 // GIB) / 10 + 0.1
    return PlanError(
        "memory",
        f"a ceiling of {asked / GIB:.3g} GiB is under the {resident / GIB:.3g} GiB "
        "that the process holds already",
        f"Use {least:.1f}GiB or more.",
    )
