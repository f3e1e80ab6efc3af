"""Slices cut when they are asked for, against torch's own cut."""

import pytest
import torch

from stepladder.seam.lookup import find, has
from stepladder.seam.sharding import CUT, Slices


@pytest.mark.parametrize(
    ("shape", "ways", "dim"), [((10, 3), 4, 0), ((3, 9), 2, 1), ((2, 2), 5, 0)]
)
def test_a_slice_is_what_torch_cuts(shape, ways, dim):
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    expected, found = find(CUT)(whole, ways, dim), Slices(whole, ways, dim)
    for index, one in enumerate(expected):
        assert torch.equal(found[index], one), index
        assert found[index].shape == one.shape
    assert has(CUT)
