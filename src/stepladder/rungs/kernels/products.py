"""Matrix products by the way that is fastest here, found by trying, and kept (trials.py).

A shape is tried the first time it comes, which is in a run's first step, about a second each; a
later run on this machine finds what was chosen. Whichever way is taken, the bits are torch's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import cublaslt
from .cublaslt import WORKSPACE, Product, Shape, Way
from .trials import Run, find

ALIGNED = (256, 128, 64, 32, 16)  # bytes; more is no better, and less takes other ways
FEWEST = 2**31  # multiplications below which a product is over before a choice could pay
TYPES = (torch.bfloat16, torch.float16)


class Chosen(NamedTuple):
    product: Product
    way: Way


def multiply(
    left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None, *, add: bool = False
) -> Tensor:
    """out = left @ right (+ bias), or out += left @ right, by the fastest way there is.

    Args:
        add: to what is in `out`, which may be of more bits than the operands.
    """
    shape = shape_of(left, right, out, bias, add)
    chosen = choice(shape, left, right, out, bias) if shape else None
    if chosen is None:
        return plainly(left, right, out, bias, add=add)
    queue(*chosen, left, right, out, bias)
    return out


def plainly(
    left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None, *, add: bool = False
) -> Tensor:
    """The same by torch."""
    if bias is not None:
        return torch.addmm(bias, left, right, out=out)
    if not add:
        return torch.mm(left, right, out=out)
    if out.dtype == left.dtype:
        return out.addmm_(left, right)
    if left.is_cuda:  # summed as the product is written: a sum of its own would be a third pass
        return torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    return out.addmm_(left.to(out.dtype), right.to(out.dtype))


def shape_of(
    left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None, add: bool
) -> Shape | None:
    """What a choice depends on; None for a product that is torch's alone."""
    if not left.is_cuda or left.dtype not in TYPES or left.dtype != right.dtype:
        return None
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < FEWEST or cublaslt.library() is None:
        return None
    if bias is not None and (add or bias.dtype != out.dtype or bias.stride() != (1,)):
        return None
    by_left, by_right = pitch(left), pitch(right)
    if by_left is None or by_right is None or not out.is_contiguous():
        return None
    addresses = [t.data_ptr() for t in (left, right, out)]
    alignment = next((n for n in ALIGNED if not any(a % n for a in addresses)), 0)
    if not alignment:
        return None
    return Shape(
        rows, columns, inner, by_left[0], by_right[0], by_left[1], by_right[1],
        left.dtype, out.dtype, bias is not None, add, alignment,
    )  # fmt: skip


def pitch(matrix: Tensor) -> tuple[bool, int] | None:
    """Whether columns are contiguous, and from one to the next; None where neither side is."""
    (height, width), (down, along) = matrix.shape, matrix.stride()
    if along == 1 and down >= width:
        return False, down
    return (True, along) if down == 1 and along >= height else None


KNOWN: dict[tuple[int, Shape], Chosen | None] = {}
SPACES: dict[tuple[int, int], Tensor] = {}  # of each device and stream


def choice(
    shape: Shape, left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None
) -> Chosen | None:
    """The way of a shape; None where torch's own product is as fast."""
    key = left.device.index, shape
    if key not in KNOWN:
        if torch.cuda.is_current_stream_capturing():
            return None  # nothing can be timed now; shapes are taken plainly before
        product = Product(shape)
        try:
            found = find(shape, product, trial_of(product, left, right, out, bias, shape.adds))
        except torch.OutOfMemoryError:  # a trial wants room for two results, which a step does not
            found = None
        KNOWN[key] = Chosen(product, found) if found else None
    return KNOWN[key]


def trial_of(
    product: Product, left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None, add: bool
) -> Run:
    """The product into a place of its own, for what is in `out` may be added to."""
    scratch = torch.empty_like(out)

    def run(way: Way | None) -> Tensor:
        if add:
            scratch.zero_()
        if way is None:
            return plainly(left, right, scratch, bias, add=add)
        queue(product, way, left, right, scratch, bias)
        return scratch

    return run


def queue(
    product: Product, way: Way, left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None
) -> None:
    stream = torch.cuda.current_stream(left.device).cuda_stream
    space = SPACES.get((left.device.index, stream))
    if space is None:
        space = torch.empty(WORKSPACE, dtype=torch.uint8, device=left.device)
        SPACES[left.device.index, stream] = space
    bias_at = 0 if bias is None else bias.data_ptr()
    product.run(
        way, right.data_ptr(), left.data_ptr(), out.data_ptr(), bias_at, space.data_ptr(), stream
    )


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return multiply(left, right, left.new_empty(left.shape[0], right.shape[1]), bias)


torch.library.define("stepladder::product", "(Tensor left, Tensor right, Tensor? bias) -> Tensor")
torch.library.impl("stepladder::product", ("cpu", "cuda"), _product)


@torch.library.register_fake("stepladder::product")
def _fake_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])
