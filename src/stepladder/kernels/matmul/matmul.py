"""Matmuls by the fastest cuBLASLt algorithm, found by autotuning (autotune.py), else by torch.

A shape is tuned when it first occurs, in the first step of a run, in about a second; later runs on
this machine find the saved choice. Whichever algorithm runs, the bits are torch's. An epilogue
(cublaslt.EPILOGUES, or a sum with another matrix) is applied in float32 before the result is
written, without a pass over memory of its own; it is then rounded once instead of twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import cublaslt
from .autotune import Run, Same, best_algorithm
from .cublaslt import WORKSPACE, Algorithm, Matmul, MatmulShape

ALIGNED = (256, 128, 64, 32, 16)  # bytes; more gains nothing, less limits the algorithms
MIN_MULTIPLICATIONS = 2**31  # below, autotuning gains nothing
DTYPES = (torch.bfloat16, torch.float16)
# A few roundings to 8 bits of mantissa: of a value, and of the root mean square of all values.
RELATIVE, ABSOLUTE = 2**-6, 2**-7


class Operands(NamedTuple):
    """The tensors a matmul reads and writes."""

    left: Tensor
    right: Tensor
    out: Tensor
    bias: Tensor | None = None
    added: Tensor | None = None  # of the shape of `out`, and maybe `out` itself
    aux: Tensor | None = None  # of the same shape; read or written by the epilogue


Fallback = Callable[[Operands], object]


class Tuned(NamedTuple):
    matmul: Matmul
    algorithm: Algorithm


def multiply(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    autotune: bool = True,
) -> Tensor:
    """out = left @ right (+ bias), or out += left @ right, by the fastest algorithm.

    Args:
        out: may be of more bits than the operands, unless there is a bias.
        autotune: False for torch's own matmul, where the shape will not occur again.
    """
    given = Operands(left, right, out, bias, out if add else None)
    if autotune:
        run_tuned(given, torch_matmul)
    else:
        torch_matmul(given)
    return out


def multiply_and_add(left: Tensor, right: Tensor, bias: Tensor | None, added: Tensor) -> Tensor:
    """Return left @ right (+ bias) + added, summed before it is rounded where that is faster."""
    assert added.dtype == left.dtype, "the addend must have the operands' type"
    out = left.new_empty(added.shape)
    same = partial(close, added=added)
    run_tuned(Operands(left, right, out, bias, added), torch_matmul_add, same=same)
    return out


def run_tuned(
    given: Operands, fallback: Fallback, epilogue: str = "", same: Same = torch.equal
) -> None:
    """Compute by the tuned algorithm, or by `fallback` where torch is as fast."""
    shape = shape_of(given, epilogue)
    chosen = tuned_for(shape, given, fallback, same) if shape else None
    if chosen is None:
        fallback(given)
    else:
        launch(*chosen, given)


def torch_matmul(given: Operands) -> Tensor:
    """The matmul by torch."""
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
    # One call: a separate sum would pass over memory again.
    return torch.addmm(out, left, right, out_dtype=out.dtype, out=out)


def torch_matmul_add(given: Operands) -> Tensor:
    assert given.added is not None
    return multiply(given.left, given.right, given.out, given.bias).add_(given.added)


def shape_of(given: Operands, epilogue: str = "") -> MatmulShape | None:
    """What a tuned choice depends on; None for a matmul that is left to torch."""
    left, right, out, bias, added, aux = given
    if not left.is_cuda or left.dtype not in DTYPES or left.dtype != right.dtype:
        return None
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < MIN_MULTIPLICATIONS or cublaslt.library() is None:
        return None
    if bias is not None and (added is out or bias.dtype != out.dtype or bias.stride() != (1,)):
        return None
    by_left, by_right = leading_stride(left), leading_stride(right)
    sized = [each for each in (out, added, aux) if each is not None]
    if by_left is None or by_right is None or not all(each.is_contiguous() for each in sized):
        return None
    addresses = [t.data_ptr() for t in (left, right, *sized)]
    alignment = next((n for n in ALIGNED if not any(a % n for a in addresses)), 0)
    if not alignment or any(each.dtype != out.dtype for each in sized):
        return None
    return MatmulShape(
        rows, columns, inner, by_left[0], by_right[0], by_left[1], by_right[1],
        left.dtype, out.dtype, epilogue or ("bias" if bias is not None else ""),
        "" if added is None else "out" if added is out else "other", alignment,
    )  # fmt: skip


def leading_stride(matrix: Tensor) -> tuple[bool, int] | None:
    """Whether a matrix is transposed in memory, and its leading stride; None for other layouts."""
    (height, width), (down, along) = matrix.shape, matrix.stride()
    if along == 1 and down >= width:
        return False, down
    return (True, along) if down == 1 and along >= height else None


TUNED: dict[tuple[int, MatmulShape], Tuned | None] = {}
WORKSPACES: dict[tuple[int, int], Tensor] = {}  # by device and stream


def tuned_for(shape: MatmulShape, given: Operands, fallback: Fallback, same: Same) -> Tuned | None:
    """The tuned algorithm of a shape; None where torch's own matmul is as fast."""
    key = given.left.device.index, shape
    if key not in TUNED:
        if torch.cuda.is_current_stream_capturing():
            return None  # nothing can be timed during capture; warm-up steps tune
        matmul = Matmul(shape)
        try:
            found = best_algorithm(shape, matmul, trial_runner(matmul, given, fallback), same)
        except torch.OutOfMemoryError:  # a trial needs a second result, a step does not
            found = None
        TUNED[key] = Tuned(matmul, found) if found else None
    return TUNED[key]


def trial_runner(matmul: Matmul, given: Operands, fallback: Fallback) -> Run:
    """Runs the matmul into scratch memory, since `out` may be accumulated into."""
    in_place, epilogue = given.added is given.out, matmul.shape.epilogue
    # GELU's input is written as `aux`; in one tensor, both are compared.
    scratch = given.out.new_empty(1 + (epilogue == "gelu"), *given.out.shape)
    place = given._replace(out=scratch[0])
    if in_place:
        place = place._replace(added=place.out)
    if epilogue == "gelu":
        place = place._replace(aux=scratch[1])
    matmul.set_pointers(place.bias, place.aux)  # their alignment limits the algorithms

    def run(algorithm: Algorithm | None) -> Tensor:
        if in_place:
            scratch.zero_()
        if algorithm is None:
            fallback(place)
        else:
            launch(matmul, algorithm, place)
        return scratch

    return run


def close(got: Tensor, wanted: Tensor, *, added: Tensor | None = None) -> bool:
    """Whether two results differ only by rounding.

    Args:
        added: what the matmul was added to. Where the two nearly cancel, the matmul's rounding
            is large relative to the sum, but not relative to this.
    """
    typical = wanted.float().square().mean().sqrt()
    size = wanted.abs().float() if added is None else wanted.abs().float() + added.abs().float()
    allowed = RELATIVE * size + ABSOLUTE * typical
    return bool(((got.float() - wanted.float()).abs() <= allowed).all())


def launch(matmul: Matmul, algorithm: Algorithm, given: Operands) -> None:
    device = given.left.device
    stream = torch.cuda.current_stream(device).cuda_stream
    space = WORKSPACES.get((device.index, stream))
    if space is None:
        space = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        WORKSPACES[device.index, stream] = space
    matmul.set_pointers(given.bias, given.aux)
    added = given.out if given.added is None else given.added
    matmul.run(
        algorithm, given.right.data_ptr(), given.left.data_ptr(), added.data_ptr(),
        given.out.data_ptr(), space.data_ptr(), stream,
    )  # fmt: skip


def _matmul(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return multiply(left, right, left.new_empty(left.shape[0], right.shape[1]), bias)


torch.library.define("stepladder::matmul", "(Tensor left, Tensor right, Tensor? bias) -> Tensor")
torch.library.impl("stepladder::matmul", ("cpu", "cuda"), _matmul)
torch.library.define(
    "stepladder::matmul_add", "(Tensor left, Tensor right, Tensor? bias, Tensor added) -> Tensor"
)
torch.library.impl("stepladder::matmul_add", ("cpu", "cuda"), multiply_and_add)


@torch.library.register_fake("stepladder::matmul")
def _fake_matmul(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@torch.library.register_fake("stepladder::matmul_add")
def _fake_matmul_add(left: Tensor, right: Tensor, bias: Tensor | None, added: Tensor) -> Tensor:
    return left.new_empty(added.shape)
