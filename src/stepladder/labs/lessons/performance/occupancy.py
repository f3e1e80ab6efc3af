"""Occupancy: how many blocks fit on a multiprocessor, and how many waves a kernel takes.

A GPU hands the blocks of a kernel to its multiprocessors (SMs). A block needs room for its threads,
its registers and its shared memory; whatever runs out first limits how many blocks an SM works on
at the same time. Occupancy is the share of an SM's 64 warps (of 32 threads) that are in use: while
one warp waits for memory, another can compute. Room is given out in fixed units:

    threads         in warps of 32; a warp is begun for the last few threads, too
    registers       to each warp, rounded up to a multiple of 256. An SM has four partitions with
                    a quarter of the registers each, and a warp lives in one of them
    shared memory   to each block, which costs 1 KiB more than the kernel asks for

Blocks beyond what all SMs hold wait for the next wave. A wave that is nearly empty takes as long as
a full one (wave quantisation).

Claim: with 256 threads of 128 registers and 64 KiB of shared memory an H100's SM holds 2 blocks and
has an occupancy of 25 %; 4,096 x 4,096 numbers in tiles of 128 then fill 97 % of their waves. The
limits of a real GPU are told by torch.cuda.get_device_properties.

Predict: That kernel computes a 3,072 x 3,072 result in tiles of 128 x 128, a block each, on the 132
SMs of an H100. Which share of its waves is in use? [share of the waves; size = 3072]

Often wrong:
- registers are not rounded up to a multiple of 256 for each warp
- the shared memory that a block costs by itself is forgotten
- the most plentiful resource is taken for the limit
- the last wave is counted by how full it is
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KIB = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """What one SM has, as of compute capability 9.0; `count` of them make a GPU."""

    count: int = 132
    warps: int = 64
    blocks: int = 32
    partitions: int = 4
    registers: int = 65536
    shared_bytes: int = 228 * KIB


@dataclass(frozen=True)
class Kernel:
    """What one block of a kernel asks for."""

    threads: int
    registers: int  # of a thread
    shared_bytes: int = 0

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)


H100, A100 = Multiprocessor(), Multiprocessor(count=108, shared_bytes=164 * KIB)
MATMUL = Kernel(threads=256, registers=128, shared_bytes=64 * KIB)  # a tile of 128 x 128 a block


def blocks_by_registers(sm: Multiprocessor, kernel: Kernel) -> int:
    """How many blocks there are registers for."""
    # >>> Blocks that the registers of all partitions suffice for.
    # ??? What does one warp get? 32 threads ask for their registers; the sum is rounded up.
    # ??? How many whole warps fit into one partition, and so into all of them?
    # ??? A block needs all of its warps: how many blocks do those warps make?
    each = -(-32 * kernel.registers // 256) * 256
    warps = sm.registers // sm.partitions // each * sm.partitions
    return warps // kernel.warps
    # <<< return ...  # type: ignore[return-value]


def blocks_by_shared_memory(sm: Multiprocessor, kernel: Kernel) -> int:
    """How many blocks there is shared memory for."""
    # >>> Blocks that the shared memory suffices for.
    # ??? What does a block cost that asks for nothing? The table above says it.
    # ??? Only whole blocks count.
    return sm.shared_bytes // (kernel.shared_bytes + KIB)
    # <<< return ...  # type: ignore[return-value]


def blocks_per_sm(sm: Multiprocessor, kernel: Kernel) -> int:
    """How many blocks of a kernel one SM works on at the same time."""
    limits = {
        "warps": sm.warps // kernel.warps,
        "blocks": sm.blocks,
        "registers": blocks_by_registers(sm, kernel),
        "shared memory": blocks_by_shared_memory(sm, kernel),
    }
    # >>> The number that respects every limit.
    # ??? One block more needs room in all four respects.
    # ??? Which of the four numbers is it, then?
    return min(limits.values())
    # <<< return ...  # type: ignore[return-value]


def occupancy(sm: Multiprocessor, kernel: Kernel) -> float:
    """The share of an SM's warps that are in use."""
    return blocks_per_sm(sm, kernel) * kernel.warps / sm.warps


def wave_share(sm: Multiprocessor, kernel: Kernel, num_blocks: int) -> float:
    """The share of the places in all waves that have a block."""
    a_wave = sm.count * blocks_per_sm(sm, kernel)
    # >>> Blocks that there are, over places in all the waves that it takes.
    # ??? How many waves do a wave's blocks and one more take?
    # ??? Every wave that has begun takes as long as a full one, and has as many places.
    return num_blocks / (-(-num_blocks // a_wave) * a_wave)
    # <<< return ...  # type: ignore[return-value]


def measure() -> list[dict[str, Any]]:
    rows = []
    for size in range(512, 6145, 256):
        blocks = (size // 128) ** 2
        row = {"size": size, "blocks": blocks, "blocks on an SM": blocks_per_sm(H100, MATMUL)}
        share = wave_share(H100, MATMUL, blocks)
        rows.append({**row, "occupancy": occupancy(H100, MATMUL), "share of the waves": share})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
