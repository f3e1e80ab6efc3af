"""Triton programs for cross-entropy: one row of logits per program, walked in chunks.

The softmax is online (a running maximum, and a sum of exponentials rescaled whenever the
maximum grows), so a row of any length is read once and never overflows. The maximum and the log of
the sum stay two numbers: added, the larger would round the smaller away. A target outside the
vocabulary gives NaN instead of reading out of bounds: visible, without synchronising with the host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepladder.kernels.backend import num_multiprocessors

BLOCK = 4096  # elements of a row read at a time
WARPS = 8
REACH = tl.constexpr(30.0)  # how far above a row's base logits may lie: e^30 has room in bf16
# No global for NaN: before each launch Triton checks that the globals a kernel uses are unchanged,
# and NaN never equals itself.


@triton.jit
def _top_and_log_sum(row, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    top = -float("inf")
    total = tl.zeros((BLOCK,), dtype=tl.float32)  # by lane, added up at the end
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        x = tl.load(row + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        # A chunk may hold nothing but -inf (a masked vocabulary); -inf minus -inf would be NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = higher
    return top, tl.log(tl.sum(total, axis=0))


@triton.jit
def _store_gradient(row, out, target, top, log_sum, scale, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        x = tl.load(row + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        hit = tl.where(start + columns == target, 1.0, 0.0)
        tl.store(out + start + columns, (tl.exp(x - top - log_sum) - hit) * scale, mask=inside)


@triton.jit
def _store_zeros(out, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        inside = start + columns < width
        tl.store(out + start + columns, tl.zeros((BLOCK,), tl.float32), mask=inside)


@triton.jit
def _losses(logits, targets, losses, norms, width, stride, ignore_index, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    target = tl.load(targets + index).to(tl.int64)
    if target == ignore_index:
        tl.store(losses + index, 0.0)
        tl.store(norms + 2 * index, 0.0)
        tl.store(norms + 2 * index + 1, 0.0)
    else:
        legal = (target >= 0) & (target < width)
        chosen = tl.load(row + target, mask=legal, other=float("nan")).to(tl.float32)
        top, log_sum = _top_and_log_sum(row, width, BLOCK)
        tl.store(losses + index, log_sum - (chosen - top))
        tl.store(norms + 2 * index, top)
        tl.store(norms + 2 * index + 1, log_sum)


@triton.jit
def _gradient(
    logits, targets, norms, dlosses, out, width, stride, dlosses_stride, ignore_index,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row, out_row = logits + index * stride, out + index * width
    target = tl.load(targets + index).to(tl.int64)
    if target == ignore_index:
        _store_zeros(out_row, width, BLOCK)
    else:
        legal = (target >= 0) & (target < width)
        dloss = tl.load(dlosses + index * dlosses_stride).to(tl.float32)
        scale = tl.where(legal, dloss, float("nan"))
        top, log_sum = tl.load(norms + 2 * index), tl.load(norms + 2 * index + 1)
        _store_gradient(row, out_row, target, top, log_sum, scale, width, BLOCK)


@triton.jit
def _gradient_of_columns(
    logits, columns, norms, dlosses, width, stride, dlosses_stride, ignore_index,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    column = tl.load(columns + index)
    if column == ignore_index:
        _store_zeros(row, width, BLOCK)
    else:
        scale = tl.load(dlosses + index * dlosses_stride).to(tl.float32)
        top, log_sum = tl.load(norms + 2 * index), tl.load(norms + 2 * index + 1)
        _store_gradient(row, row, column, top, log_sum, scale, width, BLOCK)


@triton.jit
def _losses_and_gradient(
    logits, targets, share, losses, width, stride, ignore_index, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    target = tl.load(targets + index).to(tl.int64)
    if target == ignore_index:
        tl.store(losses + index, 0.0)
        _store_zeros(row, width, BLOCK)
    else:
        legal = (target >= 0) & (target < width)
        chosen = tl.load(row + target, mask=legal, other=float("nan")).to(tl.float32)
        top, log_sum = _top_and_log_sum(row, width, BLOCK)
        tl.store(losses + index, log_sum - (chosen - top))
        scale = tl.where(legal, tl.load(share), float("nan"))
        tl.debug_barrier()  # every thread has read the target's logit before any writes over it
        _store_gradient(row, row, target, top, log_sum, scale, width, BLOCK)


@triton.jit
def _losses_and_exponentials(
    logits, targets, share, losses, factors, width, stride, ignore_index, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    target = tl.load(targets + index).to(tl.int64)
    if target == ignore_index:
        tl.store(losses + index, 0.0)
        tl.store(factors + index, 0.0)
        _store_zeros(row, width, BLOCK)
    else:
        legal = (target >= 0) & (target < width)
        chosen = tl.load(row + target, mask=legal, other=float("nan")).to(tl.float32)
        tl.debug_barrier()  # every thread has read the target's logit before any writes over it
        base, total = _store_exponentials(row, width, BLOCK)
        tl.store(losses + index, tl.log(total) - (chosen - base))
        tl.store(factors + index, tl.where(legal, tl.load(share), float("nan")) / total)
        tl.debug_barrier()  # its exponential is written by whichever thread has that column
        tl.store(row + target, tl.exp(chosen - base) - total, mask=legal)


@triton.jit
def _store_exponentials(row, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    top = -float("inf")
    base = 0.0  # the first chunk's maximum, unless a later one exceeds it by far
    total = tl.zeros((BLOCK,), dtype=tl.float32)  # by lane, added up at the end
    ahead = tl.load(row + columns, mask=columns < width, other=-float("inf"))
    for start in range(0, width, BLOCK):
        x = ahead.to(tl.float32)
        # Asked for before this chunk is written: the compiler cannot know that they do not overlap.
        later = start + BLOCK + columns
        ahead = tl.load(row + later, mask=later < width, other=-float("inf"))
        higher = tl.max(x, axis=0)
        if higher > top + REACH:  # so it is for the first that is not -inf throughout
            by = tl.exp(top - higher)
            tl.debug_barrier()  # whoever reads them now may not be who wrote them
            for earlier in range(0, start, BLOCK):
                written = tl.load(row + earlier + columns).to(tl.float32)
                tl.store(row + earlier + columns, written * by)
            total *= by
            top = higher
            base = higher
        e = tl.exp(x - base)
        total += e
        tl.store(row + start + columns, e, mask=start + columns < width)
    return base, tl.sum(total, axis=0)


@triton.jit
def _scale(values, factor, num_values, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if by != 1.0:  # decided on the device: the host would have to wait to know
        start = tl.program_id(0).to(tl.int64) * BLOCK
        for at in range(start, num_values, tl.num_programs(0) * BLOCK):
            places = at + tl.arange(0, BLOCK)
            x = tl.load(values + places, mask=places < num_values, other=0.0)
            tl.store(values + places, x.to(tl.float32) * by, mask=places < num_values)


@triton.jit
def _scale_rows(values, factors, out, width, stride, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    by = tl.load(factors + index)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(values + index * stride + columns, mask=columns < width).to(tl.float32)
        tl.store(out + index * width + columns, x * by, mask=columns < width)


def _block(width: int) -> int:
    return min(BLOCK, triton.next_power_of_2(width))


def losses(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Loss of each row, 0 where ignored; its maximum and the log of its summed exponentials."""
    num_rows, width = logits.shape
    out = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    norms = torch.empty((num_rows, 2), dtype=torch.float32, device=logits.device)
    _losses[(num_rows,)](
        logits, targets, out, norms, width, logits.stride(0), ignore_index,
        BLOCK=_block(width), num_warps=WARPS,
    )  # fmt: skip
    return out, norms


def gradient(
    logits: Tensor, targets: Tensor, norms: Tensor, dlosses: Tensor, ignore_index: int
) -> Tensor:
    """Gradient of the logits, given the gradient of each row's loss."""
    num_rows, width = logits.shape
    out = torch.empty((num_rows, width), dtype=logits.dtype, device=logits.device)
    _gradient[(num_rows,)](
        logits, targets, norms, dlosses, out, width, logits.stride(0), dlosses.stride(0),
        ignore_index, BLOCK=_block(width), num_warps=WARPS,
    )  # fmt: skip
    return out


def gradient_of_columns_(
    logits: Tensor, columns: Tensor, norms: Tensor, dlosses: Tensor, ignore_index: int
) -> None:
    """Each row becomes its gradient; the target's column, negative where it is not in the row."""
    num_rows, width = logits.shape
    _gradient_of_columns[(num_rows,)](
        logits, columns, norms, dlosses, width, logits.stride(0), dlosses.stride(0), ignore_index,
        BLOCK=_block(width), num_warps=WARPS,
    )  # fmt: skip


def losses_and_gradient_(
    logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int
) -> Tensor:
    """Loss of each row; the logits become their own gradient, times `share`."""
    num_rows, width = logits.shape
    out = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    _losses_and_gradient[(num_rows,)](
        logits, targets, share, out, width, logits.stride(0), ignore_index,
        BLOCK=_block(width), num_warps=WARPS,
    )  # fmt: skip
    return out


def losses_and_exponentials_(
    logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Loss of each row; the logits become their gradient divided by each row's factor."""
    num_rows, width = logits.shape
    out, factors = torch.empty((2, num_rows), dtype=torch.float32, device=logits.device)
    _losses_and_exponentials[(num_rows,)](
        logits, targets, share, out, factors, width, logits.stride(0), ignore_index,
        BLOCK=_block(width), num_warps=WARPS,
    )  # fmt: skip
    return out, factors


def scale_rows(values: Tensor, factors: Tensor, out: Tensor) -> None:
    """Write each row times its factor into a contiguous matrix, which may be the rows' own."""
    num_rows, width = values.shape
    _scale_rows[(num_rows,)](
        values, factors, out, width, values.stride(0), BLOCK=_block(width), num_warps=4
    )


def scale_(values: Tensor, factor: Tensor) -> None:
    """Multiply a contiguous tensor by a number on the device; by 1, touch nothing."""
    programs = min(triton.cdiv(values.numel(), BLOCK), num_multiprocessors(values.device) * 8)
    _scale[(programs,)](values, factor, values.numel(), BLOCK=BLOCK, num_warps=WARPS)
