"""Matrix products by the way that is fastest here, found by trying, and kept (trials.py).

A shape is tried the first time it comes, which is in a run's first step, about a second each; a
later run on this machine finds what was chosen. Whichever way is taken, the bits are torch's. What
follows a product can be done to it before it is written, in float32 and without a pass of its own
(ENDINGS in cublaslt.py, and a sum with another matrix); it is then rounded once instead of twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import cublaslt
from .autotune import Run, Same, find
from .cublaslt import WORKSPACE, Product, Shape, Way

ALIGNED = (256, 128, 64, 32, 16)  # bytes; more is no better, and less takes other ways
FEWEST = 2**31  # multiplications below which a product is over before a choice could pay
TYPES = (torch.bfloat16, torch.float16)
# Of a value, and of the root of the mean square of all, for those near zero: a few roundings to 8
# bits of mantissa.
RELATIVE, ABSOLUTE = 2**-6, 2**-7


class Operands(NamedTuple):
    """What a product reads and writes."""

    left: Tensor
    right: Tensor
    out: Tensor
    bias: Tensor | None = None
    added: Tensor | None = None  # of the size of `out`, and maybe `out` itself
    beside: Tensor | None = None  # the same; read or written by the ending


Plainly = Callable[[Operands], object]


class Chosen(NamedTuple):
    product: Product
    way: Way


def multiply(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    tried: bool = True,
) -> Tensor:
    """out = left @ right (+ bias), or out += left @ right, by the fastest way there is.

    Args:
        out: may be of more bits than the operands, unless there is a bias.
        tried: False for torch's own way, where a shape does not come again.
    """
    given = Operands(left, right, out, bias, out if add else None)
    if tried:
        work(given, plainly)
    else:
        plainly(given)
    return out


def multiply_and_add(left: Tensor, right: Tensor, bias: Tensor | None, added: Tensor) -> Tensor:
    """Return left @ right (+ bias) + added, summed before it is rounded where that is faster."""
    assert added.dtype == left.dtype, "a wider sum would be read as what it is not"
    out = left.new_empty(added.shape)
    same = partial(alike, added=added)
    work(Operands(left, right, out, bias, added), then_add, same=same)
    return out


def work(given: Operands, plain: Plainly, ending: str = "", same: Same = torch.equal) -> None:
    """Do it by the way that is chosen, or plainly."""
    shape = shape_of(given, ending)
    chosen = choice(shape, given, plain, same) if shape else None
    if chosen is None:
        plain(given)
    else:
        queue(*chosen, given)


def plainly(given: Operands) -> Tensor:
    """The same by torch."""
    left, right, out, bias, added, _ = given
    if bias is not None:
        return torch.addmm(bias, left, right, out=out)
    if out.dtype == left.dtype:
        return torch.mm(left, right, out=out) if added is None else out.addmm_(left, right)
    if not left.is_cuda:
        left, right = left.to(out.dtype), right.to(out.dtype)
        return torch.mm(left, right, out=out) if added is None else out.addmm_(left, right)
    if added is None:
        return torch.mm(left, right, out_dtype=out.dtype, out=out)
    # Summed as the product is written: a sum of its own would be a third pass.
    return torch.addmm(out, left, right, out_dtype=out.dtype, out=out)


def then_add(given: Operands) -> Tensor:
    assert given.added is not None
    return multiply(given.left, given.right, given.out, given.bias).add_(given.added)


def shape_of(given: Operands, ending: str = "") -> Shape | None:
    """What a choice depends on; None for a product that is torch's alone."""
    left, right, out, bias, added, beside = given
    if not left.is_cuda or left.dtype not in TYPES or left.dtype != right.dtype:
        return None
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < FEWEST or cublaslt.library() is None:
        return None
    if bias is not None and (added is out or bias.dtype != out.dtype or bias.stride() != (1,)):
        return None
    by_left, by_right = pitch(left), pitch(right)
    sized = [each for each in (out, added, beside) if each is not None]
    if by_left is None or by_right is None or not all(each.is_contiguous() for each in sized):
        return None
    addresses = [t.data_ptr() for t in (left, right, *sized)]
    alignment = next((n for n in ALIGNED if not any(a % n for a in addresses)), 0)
    if not alignment or any(each.dtype != out.dtype for each in sized):
        return None
    return Shape(
        rows, columns, inner, by_left[0], by_right[0], by_left[1], by_right[1],
        left.dtype, out.dtype, ending or ("bias" if bias is not None else ""),
        "" if added is None else "itself" if added is out else "another", alignment,
    )  # fmt: skip


def pitch(matrix: Tensor) -> tuple[bool, int] | None:
    """Whether columns are contiguous, and from one to the next; None where neither side is."""
    (height, width), (down, along) = matrix.shape, matrix.stride()
    if along == 1 and down >= width:
        return False, down
    return (True, along) if down == 1 and along >= height else None


KNOWN: dict[tuple[int, Shape], Chosen | None] = {}
SPACES: dict[tuple[int, int], Tensor] = {}  # of each device and stream


def choice(shape: Shape, given: Operands, plain: Plainly, same: Same) -> Chosen | None:
    """The way of a shape; None where torch's own product is as fast."""
    key = given.left.device.index, shape
    if key not in KNOWN:
        if torch.cuda.is_current_stream_capturing():
            return None  # nothing can be timed now; shapes are taken plainly before
        product = Product(shape)
        try:
            found = find(shape, product, trial_of(product, given, plain), same)
        except torch.OutOfMemoryError:  # a trial wants room for two results, which a step does not
            found = None
        KNOWN[key] = Chosen(product, found) if found else None
    return KNOWN[key]


def trial_of(product: Product, given: Operands, plain: Plainly) -> Run:
    """The product into a place of its own, for what is in `out` may be added to."""
    in_place, ending = given.added is given.out, product.shape.ending
    # GELU's input is written beside it; as one tensor both are compared.
    scratch = given.out.new_empty(1 + (ending == "gelu"), *given.out.shape)
    place = given._replace(out=scratch[0])
    if in_place:
        place = place._replace(added=place.out)
    if ending == "gelu":
        place = place._replace(beside=scratch[1])
    product.point(place.bias, place.beside)  # by whose alignment ways are offered

    def run(way: Way | None) -> Tensor:
        if in_place:
            scratch.zero_()
        if way is None:
            plain(place)
        else:
            queue(product, way, place)
        return scratch

    return run


def alike(got: Tensor, wanted: Tensor, *, added: Tensor | None = None) -> bool:
    """Whether two results differ by roundings alone.

    Args:
        added: what a product was summed with. Where the two nearly cancel, a rounding of the
            product is large beside their sum, and never beside this.
    """
    typical = wanted.float().square().mean().sqrt()
    size = wanted.abs().float() if added is None else wanted.abs().float() + added.abs().float()
    allowed = RELATIVE * size + ABSOLUTE * typical
    return bool(((got.float() - wanted.float()).abs() <= allowed).all())


def queue(product: Product, way: Way, given: Operands) -> None:
    device = given.left.device
    stream = torch.cuda.current_stream(device).cuda_stream
    space = SPACES.get((device.index, stream))
    if space is None:
        space = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        SPACES[device.index, stream] = space
    product.point(given.bias, given.beside)
    added = given.out if given.added is None else given.added
    product.run(
        way, given.right.data_ptr(), given.left.data_ptr(), added.data_ptr(),
        given.out.data_ptr(), space.data_ptr(), stream,
    )  # fmt: skip


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return multiply(left, right, left.new_empty(left.shape[0], right.shape[1]), bias)


torch.library.define("stepladder::product", "(Tensor left, Tensor right, Tensor? bias) -> Tensor")
torch.library.impl("stepladder::product", ("cpu", "cuda"), _product)
torch.library.define(
    "stepladder::product_sum", "(Tensor left, Tensor right, Tensor? bias, Tensor added) -> Tensor"
)
torch.library.impl("stepladder::product_sum", ("cpu", "cuda"), multiply_and_add)


@torch.library.register_fake("stepladder::product")
def _fake_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@torch.library.register_fake("stepladder::product_sum")
def _fake_sum(left: Tensor, right: Tensor, bias: Tensor | None, added: Tensor) -> Tensor:
    return left.new_empty(added.shape)
