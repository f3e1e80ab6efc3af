"""The compiled programs for a product: right at the size that is measured, and their occupancy."""

import pytest
import torch

from stepladder.bench.device.matmuls import measure_copies, measure_matmuls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


def test_each_way_is_right_and_tiles_are_faster_than_elements():
    rows = {row.name: row for row in measure_matmuls(GPU, 0.0)}
    assert [row.problem for row in rows.values()] == [""] * 4
    element, tile = rows["an element a lane"], rows["a tile a program"]
    assert tile.flops_per_second > 2 * element.flops_per_second
    if element.occupancy is not None:
        assert element.occupancy.block.threads == 128
        assert tile.occupancy.block.shared_bytes > element.occupancy.block.shared_bytes


def test_a_copy_on_the_device_is_faster_than_one_from_the_host():
    rows = {row.name: row for row in measure_copies(GPU, 0.0)}
    pinned, within = rows["host to device, pinned"], rows["device to itself"]
    assert within.bytes_per_second > pinned.bytes_per_second
