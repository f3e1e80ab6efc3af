"""8-bit numbers in both layouts, by the Triton programs too where they are interpreted.

Apart from the other tests of 8 bits: Triton's interpreter does not round to them as devices do, so
only numbers that they hold exactly tell something there.
"""

import pytest
import torch

from stepladder.kernels.float8_cross_entropy import gradient
from stepladder.kernels.float8_linear import GRADIENTS, VALUES, cast

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kind", [VALUES, GRADIENTS])
@pytest.mark.parametrize("shape", [(1, 1), (100, 48), (257, 130), (16, 512)])
def test_numbers_that_8_bits_hold_are_themselves_in_both_layouts(shape, kind):
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randint(-8, 8, shape, generator=draw).bfloat16().to(DEVICE)
    matrix[0, 0] = torch.finfo(kind).max
    plain, transposed = cast(matrix, kind)
    assert torch.equal(plain.values.float(), matrix.float())
    assert torch.equal(transposed.values.float(), matrix.float().T)
    assert plain.scale == transposed.scale == 1


def test_the_gradient_of_logits_lies_in_both_layouts_and_ignored_rows_have_none():
    height, width, classes = 150, 48, 16  # more rows and columns than a tile, and not whole ones
    logits = torch.full((height, width), float("-inf"), dtype=torch.bfloat16, device=DEVICE)
    logits[:, :classes] = 0
    logits[5] = float("nan")
    targets = torch.arange(height, device=DEVICE) % classes
    targets[5], targets[7], ignored = 11, width, 11
    norms = torch.tensor([1.0, classes], device=DEVICE).log().expand(height, 2).contiguous()
    share = torch.full((), 0.25, device=DEVICE)
    plain, transposed = gradient(logits, targets, norms, share, ignored)
    values = plain.values.float() * plain.scale
    assert torch.equal(transposed.values.float().nan_to_num(), plain.values.float().T.nan_to_num())
    assert transposed.scale == plain.scale
    wanted = torch.zeros(height, width, device=DEVICE)
    wanted[:, :classes] = 0.25 / 16
    wanted[torch.arange(height), targets.clamp(max=width - 1)] -= 0.25
    wanted[targets == ignored] = 0
    assert values[7].isnan().all(), "a class that is none"
    values[7] = wanted[7] = 0
    assert torch.allclose(values, wanted, rtol=0.26)
    assert not values[targets == ignored].any()
