"""What kernels take for themselves, against allocations seen on an H200."""

import pytest
import torch

from stepladder.rehearse.workspaces import column_sum_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("rows", "columns", "measured"),
    [(9856, 2048, 132 * MIB), (25088, 3072, 132 * MIB), (128, 768, 0)],
)
def test_sums_of_columns_take_the_partial_sums_of_every_block(rows, columns, measured):
    matrix = torch.empty(rows, columns, device="meta")
    assert column_sum_bytes(matrix, [0]) == measured


def test_other_sums_take_nothing():
    assert column_sum_bytes(torch.empty(9856, 2048, device="meta"), [1]) == 0
    assert column_sum_bytes(torch.empty(8, 9856, 2048, device="meta"), [0]) == 0
