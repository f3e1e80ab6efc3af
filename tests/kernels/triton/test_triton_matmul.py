"""The two programs for a product, against numpy in float64: on a GPU, or where Triton is
interpreted (`test_interpreted` runs this file so)."""

import numpy as np
import pytest
import torch

from stepladder.kernels.backend import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if not (INTERPRETED or DEVICE == "cuda"):
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from stepladder.kernels.triton.triton_matmul import (  # noqa: E402
    LARGE,
    SMALL,
    Tile,
    by_element,
    by_tile,
    tile_for,
)

TINY = Tile(16, 32, 16, warps=4, stages=2, band=2)
# Whole tiles and not, one row, one column, more tiles than a band is high, an inner that is odd.
SHAPES = [(1, 1, 1), (16, 16, 32), (33, 17, 65), (100, 40, 1), (1, 50, 40), (70, 16, 48)]


def matrices(shape, dtype):
    height, inner, width = shape
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(height, inner, generator=draw).to(dtype)
    right = torch.randn(inner, width, generator=draw).to(dtype)
    wanted = left.double().numpy() @ right.double().numpy()
    return left.to(DEVICE), right.to(DEVICE), wanted


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill fresh tensors: an element a kernel forgets to write cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Results of 16 bits are rounded once, by half a last digit of each; float32 products of tl.dot may
# be tf32 on a GPU. The interpreter's tl.dot multiplies bf16 numbers' bits, so bf16 is left to GPUs.
BOUNDS = {torch.float32: 2e-3 if DEVICE == "cuda" else 1e-6, torch.float16: 1e-3}
if DEVICE == "cuda":
    BOUNDS[torch.bfloat16] = 4e-3


def assert_near(got, wanted, dtype):
    error = np.linalg.norm(got.double().cpu().numpy() - wanted) / np.linalg.norm(wanted)
    assert error < BOUNDS[dtype], error


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_element_a_lane_gives_the_product(shape, dtype):
    left, right, wanted = matrices(shape, dtype)
    got, _ = by_element(left, right)
    assert got.dtype == dtype
    assert_near(got, wanted, dtype)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tile_a_program_gives_the_product(shape, dtype):
    left, right, wanted = matrices(shape, dtype)
    got, _ = by_tile(left, right, TINY)
    assert got.dtype == dtype
    assert_near(got, wanted, dtype)


@pytest.mark.parametrize("tile", [SMALL, LARGE], ids=["small", "large"])
def test_the_tiles_that_are_measured_give_the_product(tile):
    if DEVICE == "cuda" and tile is LARGE and tile_for(torch.device(DEVICE)) is SMALL:
        pytest.skip("this GPU has no room for it")
    left, right, wanted = matrices((200, 100, 300), torch.float16)
    assert_near(by_tile(left, right, tile)[0], wanted, torch.float16)
