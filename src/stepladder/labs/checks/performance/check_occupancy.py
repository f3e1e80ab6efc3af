"""Checks of occupancy: blocks placed one by one, waves run one by one, and a GPU if there is one.

Expected numbers come from placing: warps and blocks are put in until something is used up, so none
of the lesson's formulas stands here.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "registers are not rounded up to a multiple of 256 for each warp",
        "each = -(-32 * kernel.registers // 256) * 256",
        "each = 32 * kernel.registers",
        "a warp's registers are rounded up to a multiple of 256",
    ),
    Mistake(
        "the shared memory that a block costs by itself is forgotten",
        "(kernel.shared_bytes + KIB)",
        "max(1, kernel.shared_bytes)",
        "a block costs 1 KiB more than the kernel asks for",
    ),
    Mistake(
        "the most plentiful resource is taken for the limit",
        "return min(limits.values())",
        "return max(limits.values())",
        "the scarcest of the four decides",
    ),
    Mistake(
        "the last wave is counted by how full it is",
        "num_blocks / (-(-num_blocks // a_wave) * a_wave)",
        "num_blocks / (num_blocks / a_wave * a_wave)",
        "a wave that has begun takes as long as a full one",
    ),
)
REGISTERS = ((256, 33), (256, 128), (512, 40), (32, 152), (64, 200), (96, 255), (1024, 64))


def placed_by_registers(sm: Any, threads: int, registers: int) -> int:
    """Put warps into partitions one by one, then count the blocks that are complete."""
    warp = next(size for size in itertools.count(256, 256) if size >= 32 * registers)
    warps = 0
    for _ in range(sm.partitions):
        left = sm.registers // sm.partitions
        while left >= warp:
            left, warps = left - warp, warps + 1
    return warps // len(range(0, threads, 32))


def check_registers(lesson: ModuleType) -> None:
    """As many blocks as whole warps can be given registers."""
    for threads, registers in REGISTERS:
        kernel = lesson.Kernel(threads, registers)
        found = written(lesson.blocks_by_registers(lesson.H100, kernel), "blocks_by_registers")
        wanted = placed_by_registers(lesson.H100, threads, registers)
        about = f"{threads} threads of {registers} registers"
        plain = lesson.H100.registers // (32 * registers) // kernel.warps
        quarter = lesson.H100.registers // 4 // (32 * registers) * 4 // kernel.warps
        expect(
            found == wanted or found not in (plain, quarter) or 32 * registers % 256 == 0,
            f"{about}: {found} blocks, expected {wanted}: a warp's registers are rounded up to "
            "a multiple of 256.",
        )
        expect(
            found == wanted or found != plain,
            f"{about}: {found} blocks, expected {wanted}: a "
            "warp lives in one of four partitions, which hold whole warps only.",
        )
        expect_close(found, wanted, f"blocks by registers, {about}", rtol=0)


def check_shared_memory(lesson: ModuleType) -> None:
    """As many blocks as shared memory suffices for, each with its own 1 KiB."""
    for sm, asked in ((lesson.H100, 57), (lesson.H100, 64), (lesson.A100, 40), (lesson.A100, 0)):
        kernel = lesson.Kernel(128, 32, asked * 1024)
        found = written(lesson.blocks_by_shared_memory(sm, kernel), "blocks_by_shared_memory")
        wanted, left = 0, sm.shared_bytes
        while left >= (asked + 1) * 1024:
            wanted, left = wanted + 1, left - (asked + 1) * 1024
        expect(
            found <= wanted,
            f"{found} blocks of {asked} KiB: a block costs 1 KiB more than the "
            f"kernel asks for, so {wanted} fit.",
        )
        expect_close(found, wanted, f"blocks by shared memory, {asked} KiB each", rtol=0)


def check_the_scarcest_resource_decides(lesson: ModuleType) -> None:
    """Threads, blocks, registers or shared memory: whatever runs out first."""
    kernels = {
        "2,048 threads": (lesson.Kernel(1024, 32), 2),
        "32 blocks": (lesson.Kernel(32, 16), 32),
        "registers": (lesson.Kernel(256, 128), 2),
        "shared memory": (lesson.Kernel(128, 32, 100 * 1024), 2),
    }
    for limit, (kernel, wanted) in kernels.items():
        found = written(lesson.blocks_per_sm(lesson.H100, kernel), "blocks_per_sm")
        expect(
            found <= wanted,
            f"{found} blocks where {limit} suffice for {wanted}: the scarcest of the four decides.",
        )
        expect_close(found, wanted, f"blocks on an SM, limited by {limit}", rtol=0)
    expect_close(lesson.occupancy(lesson.H100, lesson.MATMUL), 0.25, "the matmul's occupancy")


def check_waves(lesson: ModuleType) -> None:
    """The share of the waves in use: a wave that has begun takes as long as a full one."""
    for blocks in (1, 263, 264, 265, 1000):
        found = written(lesson.wave_share(lesson.H100, lesson.MATMUL, blocks), "wave_share")
        left, places = blocks, 0
        while left > 0:
            left, places = left - 264, places + 264
        expect(
            found < 1 or blocks == places,
            f"{blocks} blocks, 264 places in a wave: not all "
            "places are in use; a wave that has begun takes as long as a full one.",
        )
        expect_close(found, blocks / places, f"the share in use with {blocks} blocks")


def check_a_gpu_that_is_here(lesson: ModuleType) -> None:
    """Where an H100, H200 or A100 is here, torch.cuda.get_device_properties says the same of it."""
    known = {(9, 0): lesson.H100, (8, 0): lesson.A100}
    for index in range(torch.cuda.device_count()):
        device: Any = torch.cuda.get_device_properties(index)
        if sm := known.get((device.major, device.minor)):
            expect_close(sm.registers, device.regs_per_multiprocessor, "registers", rtol=0)
            expect_close(sm.warps * 32, device.max_threads_per_multi_processor, "threads", rtol=0)
            shared = device.shared_memory_per_multiprocessor
            expect_close(sm.shared_bytes, shared, "bytes of shared memory", rtol=0)
