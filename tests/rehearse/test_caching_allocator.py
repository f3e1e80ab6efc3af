"""The model of the caching allocator, held to sums done by hand from torch's source."""

import pytest

from stepladder.rehearse.caching_allocator import CachingAllocator, rounded, segment_bytes

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 11 * MIB + 512, 12 * MIB),
    ],
)
def test_sizes_are_rounded_as_torch_rounds_them(asked, block, segment):
    assert rounded(asked) == block
    assert segment_bytes(block) == segment


def test_small_requests_share_a_segment_and_large_ones_another():
    allocator = CachingAllocator()
    for size in (100, 600, 3 * MIB, 4 * MIB):
        allocator.allocate(size)
    assert allocator.allocated == 512 + 1024 + 7 * MIB
    assert allocator.reserved == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = CachingAllocator()
    small, _, large, _ = (allocator.allocate(size * MIB) for size in (12, 2, 30, 2))
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(11 * MIB + 512 * KIB) is small
    assert allocator.reserved == (12 + 20 + 30) * MIB


def test_up_to_a_mebibyte_of_a_large_block_is_handed_out_with_it():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(12 * MIB))
    allocator.allocate(11 * MIB)
    assert allocator.allocated == 12 * MIB  # as torch counts it


def test_free_neighbours_become_one():
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    for index in (0, 2, 1, 3):
        allocator.release(parts[index])
    assert allocator.allocated == 0
    allocator.allocate(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_hole_that_is_too_small_is_reserved_and_not_allocated():
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.release(parts[0])
    allocator.release(parts[2])
    allocator.allocate(6 * MIB)
    assert (allocator.allocated, allocator.reserved) == (16 * MIB, 40 * MIB)


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(12 * MIB, stream=1))
    allocator.allocate(12 * MIB, stream=0)
    assert allocator.reserved == 24 * MIB


def test_a_full_device_gets_back_what_is_cached_before_it_is_out_of_memory():
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    allocator.release(allocator.allocate(24 * MIB))
    allocator.allocate(30 * MIB)
    assert (allocator.reserved, allocator.out_of_memory) == (30 * MIB, 0)
    allocator.allocate(12 * MIB)
    assert allocator.out_of_memory == 1
