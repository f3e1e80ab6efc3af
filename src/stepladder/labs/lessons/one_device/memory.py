"""Memory on one device: batch size, accumulation, checkpointing, leaks, out of memory.

The largest batch that fits is found by trying: double until it does not fit, then halve the gap. A
batch that does not fit is cut into micro-batches whose gradients add up; each loss is divided so
that the sum is the mean over the whole batch. Checkpointing keeps a block's input only and runs the
block again in backward. A leak is something kept from step to step that nobody meant to keep: most
often a loss with the graph behind it. And when memory is over, the error itself holds the tensors
of the failed attempt until its handler is left: try again after it, not in it.

Claim: gradients of four micro-batches are those of the whole batch (also where the last is
smaller), checkpointed blocks keep a third of the bytes here and give the same gradients, and
stepladder.climb with the plan "fp32 micro=2" ends at the same weights.

Often wrong:
- each loss is not divided by the number of micro-batches
- micro-batches of different sizes count the same
- the history keeps each loss with its graph
- the retry is made inside the error's handler
- the search ends at a power of two
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

Batch = tuple[Tensor, Tensor]


def accumulate(model: nn.Module, micros: Sequence[Batch]) -> float:
    """Leave the gradient of the mean over all rows in the model; give the mean loss."""
    num_rows, total = sum(len(x) for x, _ in micros), 0.0
    for x, y in micros:
        loss = mse_loss(model(x), y)
        # >>> Weigh the loss by this micro-batch's share of all rows (1/4 for one of four alike).
        loss = loss * len(x) / num_rows
        # <<< pass
        loss.backward()
        total += loss.item()
    return total


def forward(blocks: Sequence[nn.Module], x: Tensor, *, recompute: bool) -> Tensor:
    """Run the blocks, each under a checkpoint where asked."""
    for block in blocks:
        # >>> With recompute: checkpoint(block, x, use_reentrant=False).
        x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        # <<< x = block(x)
    return x


def history(model: nn.Module, batches: Sequence[Batch]) -> list[float]:
    """The loss on every batch, to be shown later."""
    losses: list[float] = []
    for x, y in batches:
        loss = mse_loss(model(x), y)
        # >>> Keep the number, not the graph behind it.
        losses.append(loss.item())
        # <<< losses.append(loss)  # type: ignore[arg-type]
    return losses


def largest(fits: Callable[[int], bool]) -> int:
    """The largest size that fits, if 1 does: found in about 2 log n trials."""
    size = 1
    while fits(2 * size):
        size *= 2
    # >>> It lies from `size` on and below 2 × size: try the middle until the gap is closed.
    too_large = 2 * size
    while too_large - size > 1:
        middle = (size + too_large) // 2
        size, too_large = (middle, too_large) if fits(middle) else (size, middle)
    # <<< pass
    return size


def halve_until_it_fits(attempt: Callable[[int], float], size: int) -> tuple[int, float]:
    """Try a step with this many rows, and with half as many after each MemoryError."""
    while True:
        # >>> Return the size and the loss. After a MemoryError halve the size and go on, but only
        # >>> when the handler is left: until then the error holds the failed attempt's tensors.
        try:
            return size, attempt(size)
        except MemoryError:
            pass
        size //= 2
        # <<< return size, attempt(size)


def kept_bytes(blocks: Sequence[nn.Module], x: Tensor, *, recompute: bool) -> int:
    """What autograd keeps of the blocks' forward pass beside their parameters."""
    known = {p.data_ptr() for block in blocks for p in block.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor.detach()

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = forward(blocks, x, recompute=recompute)
    return sum(t.untyped_storage().nbytes() for t in kept.values()) if out.requires_grad else 0


def measure() -> list[dict[str, float]]:
    wide = [nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(6)]
    rows = []
    for recompute in (False, True):
        one = kept_bytes(wide, torch.randn(64, 32), recompute=recompute) / 64
        fits = largest(lambda size, one=one: size * one <= 2**20)  # type: ignore[misc]
        row = {"recompute": recompute, "bytes a row": one, "rows in 1 MiB": fits}
        rows.append({**row, "micro-batches for 1,000 rows": -(-1000 // fits)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
