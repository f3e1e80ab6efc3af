"""Occupancy: how many blocks of a kernel fit a multiprocessor at once, and what keeps more out.

A multiprocessor hides the wait for memory by running other warps meanwhile, so it is occupied when
many warps are there. Four things limit them: warps, blocks, registers, shared memory. Registers are
given to a warp in units of 256, by each quarter of the multiprocessor to its own warps; shared
memory to a block in units of 128 bytes, of which CUDA itself keeps 1 KiB a block. These are the
rules of CUDA's occupancy calculator for compute capability 8.0 and later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepladder.errors import PlanError

from .chips import KIB, WARP, Multiprocessor

MOST_THREADS, MOST_REGISTERS = 1024, 255  # of a block, of a thread
REGISTER_UNIT, SHARED_UNIT, RESERVED = 256, 128, KIB
QUARTERS = 4
WORD = re.compile(r"(threads|registers|shared)=(\d+)(KiB|B)?")
EXAMPLE = "threads=256 registers=64 shared=48KiB"


@dataclass(frozen=True, slots=True)
class Block:
    """What one block of a kernel asks for.

    >>> Block.parse("threads=256 registers=64 shared=48KiB").shared_bytes
    49152
    """

    threads: int
    registers: int = 32  # a thread
    shared_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Block:
        """Read words such as `threads=256 registers=64 shared=48KiB`."""
        numbers: dict[str, int] = {}
        for word in text.split():
            found = WORD.fullmatch(word)
            if found is None or (found[3] and found[1] != "shared") or found[1] in numbers:
                problem = f"'{word}' does not describe a block"
                raise PlanError("block", problem, f"Write it as '{EXAMPLE}'.")
            numbers[found[1]] = int(found[2]) * (KIB if found[3] == "KiB" else 1)
        if "threads" not in numbers:
            raise PlanError("block", f"'{text}' has no threads", f"Write it as '{EXAMPLE}'.")
        shared = numbers.pop("shared", 0)
        return cls(**numbers, shared_bytes=shared)

    def __str__(self) -> str:
        shared = f" shared={self.shared_bytes / KIB:g}KiB" if self.shared_bytes else ""
        return f"threads={self.threads} registers={self.registers}{shared}"

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks fit one multiprocessor."""

    block: Block
    limits: dict[str, int]  # blocks that each resource has room for
    most_warps: int  # of the multiprocessor

    @property
    def blocks(self) -> int:
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        return self.blocks * self.block.warps

    @property
    def share(self) -> float:
        """Of the warps that the multiprocessor could keep."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(block: Block, on: Multiprocessor) -> Occupancy:
    """Count the blocks that fit a multiprocessor at once, by each of its limits.

    >>> from stepladder.hardware.chips import HOPPER
    >>> found = occupancy(Block(threads=256, registers=64), HOPPER)
    >>> found.blocks, found.share, found.limited_by
    (4, 0.5, ('registers',))
    """
    refuse_impossible(block, on)
    limits = {
        "warps": on.warps // block.warps,
        "blocks": on.blocks,
        "registers": blocks_by_registers(block, on),
        "shared memory": on.shared_bytes // rounded(block.shared_bytes + RESERVED, SHARED_UNIT),
    }
    return Occupancy(block, limits, on.warps)


def refuse_impossible(block: Block, on: Multiprocessor) -> None:
    """What no launch accepts: a block that is too large for an empty multiprocessor."""
    for field, asked, least, most in (
        ("threads", block.threads, 1, MOST_THREADS),
        ("registers", block.registers, 1, MOST_REGISTERS),
        ("shared", block.shared_bytes, 0, on.shared_block_bytes),
    ):
        if not least <= asked <= most:
            problem = f"{asked:,} is more or less than compute capability {on.capability} allows"
            raise PlanError(f"block.{field}", problem, f"Use {least} to {most:,}.")
    if not blocks_by_registers(block, on):
        most = max(
            (each for each in range(1, MOST_REGISTERS + 1)
             if blocks_by_registers(Block(block.threads, each), on)), default=0,
        )  # fmt: skip
        problem = f"{block.threads} threads with {block.registers} registers each need more than"
        remedy = f"Use at most {most} a thread, or fewer threads."
        raise PlanError("block.registers", f"{problem} the {on.registers:,} there are", remedy)


def blocks_by_registers(block: Block, on: Multiprocessor) -> int:
    """A block's warps are spread over the quarters, and each quarter gives whole warps."""
    each = rounded(block.registers * WARP, REGISTER_UNIT)
    if each * rounded(block.warps, QUARTERS) > on.registers:
        return 0
    return on.registers // QUARTERS // each * QUARTERS // block.warps


def rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
