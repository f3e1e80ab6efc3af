"""Blocks on a multiprocessor: by what real kernels got, and by placing them one by one."""

import random

import pytest

from stepladder.errors import PlanError
from stepladder.hardware.chips import AMPERE, HOPPER, KIB, Multiprocessor
from stepladder.hardware.occupancy import Block, occupancy

ADA = Multiprocessor(
    capability="8.9", warps=48, blocks=24, registers=65536, fast_bytes=128 * KIB,
    shared_bytes=100 * KIB, shared_block_bytes=99 * KIB, cores=128,
    matrix_units=4, matrix_flops=1024,
)  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [(64, 200, 16888, 4), (64, 168, 16888, 5)],  # as CUDA's own count of compiled kernels there
)
def test_compiled_kernels_on_ada_are_as_many_as_cuda_says(threads, registers, shared, blocks):
    assert occupancy(Block(threads, registers, shared), ADA).blocks == blocks


@pytest.mark.parametrize(
    ("words", "blocks", "limited_by"),
    [
        ("threads=32", 32, ("blocks",)),
        ("threads=1024", 2, ("warps", "registers")),
        ("threads=256 registers=33", 6, ("registers",)),  # a warp gets 1,280, not 1,056
        ("threads=128 shared=227KiB", 1, ("shared memory",)),
        ("threads=128 shared=113KiB", 2, ("shared memory",)),
        ("threads=128 shared=114KiB", 1, ("shared memory",)),  # CUDA keeps a KiB of each block
    ],
)
def test_what_limits_a_block_on_hopper(words, blocks, limited_by):
    found = occupancy(Block.parse(words), HOPPER)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * found.block.warps
    assert found.share == found.warps / 64


def placed(block: Block, on: Multiprocessor) -> int:
    """Put blocks there until one does not go: each warp where most registers are left."""
    quarters = [on.registers // 4] * 4
    shared, warps, count = on.shared_bytes, on.warps, 0
    each = 256
    while each < block.registers * 32:
        each += 256
    need = 128
    while need < block.shared_bytes + 1024:
        need += 128
    while True:
        shared, warps = shared - need, warps - -(-block.threads // 32)
        for _ in range(-(-block.threads // 32)):
            best = quarters.index(max(quarters))
            quarters[best] -= each
        if shared < 0 or warps < 0 or min(quarters) < 0 or count == on.blocks:
            return count
        count += 1


@pytest.mark.parametrize("on", [AMPERE, HOPPER, ADA], ids=lambda on: on.capability)
def test_blocks_are_those_that_go_there_one_by_one(on):
    draw, compared = random.Random(0), 0
    for _ in range(400):
        block = Block(draw.randint(1, 1024), draw.randint(1, 255), draw.randint(0, 90 * KIB))
        try:
            found = occupancy(block, on).blocks
        except PlanError:
            assert placed(block, on) == 0
            continue
        assert found == placed(block, on), block
        compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("threads=2000", "block.threads: 2,000 is more or less than compute capability 9.0 allows. "
         "Use 1 to 1,024."),
        ("threads=1024 registers=65", "block.registers: 1024 threads with 65 registers each need "
         "more than the 65,536 there are. Use at most 64 a thread, or fewer threads."),
        ("threads=32 shared=228KiB", "block.shared: 233,472 is more or less than compute "
         "capability 9.0 allows. Use 0 to 232,448."),
        ("warps=4", "block: 'warps=4' does not describe a block. Write it as "
         "'threads=256 registers=64 shared=48KiB'."),
        ("threads=32KiB", "block: 'threads=32KiB' does not describe a block"),
        ("threads=32 threads=64", "block: 'threads=64' does not describe a block"),
        ("shared=1KiB", "block: 'shared=1KiB' has no threads. Write it as"),
    ],
)  # fmt: skip
def test_a_block_that_no_launch_accepts_says_what_would_be(words, said):
    with pytest.raises(PlanError) as error:
        occupancy(Block.parse(words), HOPPER)
    assert said in str(error.value)


def test_a_block_is_text():
    block = Block(96, 40, 1536)
    assert str(block) == "threads=96 registers=40 shared=1.5KiB"
    assert Block.parse("registers=40 threads=96 shared=1536") == block
    assert Block.parse(str(Block(96, 40))) == Block(96, 40)
