"""The operators of cross-entropy: schemas, fake implementations, and Triton or torch behind each.

They are opaque to the compiler, so they run alike in eager mode, under torch.compile and on fake
tensors.
"""

import torch
from torch import Tensor

from .backend import accumulator, runs_triton

try:
    from .triton import triton_cross_entropy as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]


def _matrix(logits: Tensor) -> Tensor:
    rows = logits.reshape(-1, logits.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _forward(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    run = programs.losses if runs_triton(logits) and logits.numel() else _torch_losses
    return run(_matrix(logits), targets.reshape(-1).contiguous(), ignore_index)


def _backward(
    dlosses: Tensor, logits: Tensor, targets: Tensor, norms: Tensor, ignore_index: int
) -> Tensor:
    run = programs.gradient if runs_triton(logits) and logits.numel() else torch_gradient
    classes = targets.reshape(-1).contiguous()
    return run(_matrix(logits), classes, norms, dlosses, ignore_index).view(logits.shape)


def losses_and_gradient_(
    logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int
) -> Tensor:
    """Return the loss of each row and overwrite contiguous logits with gradient × share."""
    rows, classes = logits.view(-1, logits.shape[-1]), targets.reshape(-1).contiguous()
    if runs_triton(logits) and logits.numel():
        losses = programs.losses_and_gradient_(rows, classes, share, ignore_index)
        _count_write(logits)
        return losses
    losses, norms = _torch_losses(rows, classes, ignore_index)
    rows.copy_(torch_gradient(rows, classes, norms, share.expand(len(rows)), ignore_index))
    return losses


def losses_and_gradient_by_row_(
    logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Return losses, and the factors by which overwritten rows become gradient × share.

    A row's sum of exponentials is known only after the whole row is read; dividing by it at once
    would read and write the row again. fp16 cannot hold the exponentials: there, factors are None.
    """
    rows, classes = logits.view(-1, logits.shape[-1]), targets.reshape(-1).contiguous()
    if not (runs_triton(logits) and logits.numel()) or logits.dtype == torch.float16:
        return losses_and_gradient_(rows, classes, share, ignore_index), None
    losses, factors = programs.losses_and_exponentials_(rows, classes, share, ignore_index)
    _count_write(logits)
    return losses, factors


def scale_rows(rows: Tensor, factors: Tensor | None, *, in_place: bool = False) -> Tensor:
    """Return contiguous rows, each times its factor; unchanged where factors are None."""
    if factors is None:
        return rows
    out = rows if in_place else torch.empty_like(rows)
    programs.scale_rows(rows, factors, out)
    return out


def _scale_(values: Tensor, factor: Tensor) -> None:
    if runs_triton(values) and values.numel():
        programs.scale_(values, factor.float())
        _count_write(values)
    else:
        values.mul_(factor)


def _count_write(tensor: Tensor) -> None:
    """Tell autograd of a write by Triton, so that using a stale saved tensor is an error."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _torch_losses(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    counted, legal, safe = _check_rows(logits, targets, ignore_index)
    top = logits.amax(1, keepdim=True).to(accumulator(logits))
    log_sums = (logits - top).logsumexp(1)
    losses = log_sums - (logits.gather(1, safe[:, None]) - top).squeeze(1)
    losses = losses.masked_fill(~legal, float("nan")).masked_fill(~counted, 0.0)
    return losses, torch.stack((top.squeeze(1), log_sums), 1).masked_fill(~counted[:, None], 0.0)


def torch_gradient(
    logits: Tensor, targets: Tensor, norms: Tensor, dlosses: Tensor, ignore_index: int
) -> Tensor:
    counted, legal, safe = _check_rows(logits, targets, ignore_index)
    dlosses = dlosses.masked_fill(~legal, float("nan"))
    return _softmax_minus(torch.ones_like(safe), logits, safe, norms, dlosses, counted)


def gradient_of_columns_(
    logits: Tensor, columns: Tensor, norms: Tensor, dlosses: Tensor, ignore_index: int
) -> None:
    """Overwrite rows of logits with their gradient; a negative column is in another's slice."""
    if runs_triton(logits) and logits.numel():
        programs.gradient_of_columns_(logits, columns, norms, dlosses, ignore_index)
        _count_write(logits)
        return
    counted, hit = columns != ignore_index, columns >= 0
    logits.copy_(_softmax_minus(hit, logits, columns.clamp(min=0), norms, dlosses, counted))


def _softmax_minus(
    hit: Tensor, logits: Tensor, columns: Tensor, norms: Tensor, dlosses: Tensor, counted: Tensor
) -> Tensor:
    """The softmax, less 1 in each row's column where that is hit, times its loss's gradient."""
    out = (logits - norms[:, :1] - norms[:, 1:]).exp_()
    out.scatter_add_(1, columns[:, None], -hit.to(out.dtype)[:, None])
    out *= dlosses.to(out.dtype)[:, None]
    return out.masked_fill_(~counted[:, None], 0.0).to(logits.dtype)


def _check_rows(
    logits: Tensor, targets: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of rows that count and of targets in the vocabulary, and targets safe to gather."""
    legal = (targets >= 0) & (targets < logits.shape[1])
    return targets != ignore_index, legal, targets.long().masked_fill(~legal, 0)


torch.library.define(
    "stepladder::cross_entropy",
    "(Tensor logits, Tensor targets, int ignore_index) -> (Tensor, Tensor)",
)
torch.library.define(
    "stepladder::cross_entropy_backward",
    "(Tensor dlosses, Tensor logits, Tensor targets, Tensor norms, int ignore_index) -> Tensor",
)
torch.library.define(
    "stepladder::cross_entropy_gradient_",
    "(Tensor(a!) logits, Tensor targets, Tensor share, int ignore_index) -> Tensor",
)
torch.library.define("stepladder::scale_", "(Tensor(a!) values, Tensor factor) -> ()")
torch.library.impl("stepladder::cross_entropy", ("cpu", "cuda"), _forward)
torch.library.impl("stepladder::cross_entropy_backward", ("cpu", "cuda"), _backward)
torch.library.impl("stepladder::cross_entropy_gradient_", ("cpu", "cuda"), losses_and_gradient_)
torch.library.impl("stepladder::scale_", ("cpu", "cuda"), _scale_)


def _per_row(logits: Tensor, *more: int) -> Tensor:
    num_rows = logits.numel() // logits.shape[-1]
    return torch.empty((num_rows, *more), dtype=accumulator(logits), device=logits.device)


@torch.library.register_fake("stepladder::cross_entropy")
def _fake_forward(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    return _per_row(logits), _per_row(logits, 2)


@torch.library.register_fake("stepladder::cross_entropy_backward")
def _fake_backward(
    dlosses: Tensor, logits: Tensor, targets: Tensor, norms: Tensor, ignore_index: int
) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


@torch.library.register_fake("stepladder::cross_entropy_gradient_")
def _fake_gradient_(logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int) -> Tensor:
    return _per_row(logits)


@torch.library.register_fake("stepladder::scale_")
def _fake_scale_(values: Tensor, factor: Tensor) -> None:
    return None
