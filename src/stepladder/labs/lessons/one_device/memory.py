"""Memory on one device: batch size, accumulation, checkpointing, leaks, out of memory.

The largest batch that fits is found by trying: double until it does not fit, then halve the gap. A
batch that does not fit is cut into micro-batches whose gradients add up; each loss is divided so
that the sum is the mean over the whole batch. Checkpointing keeps a block's input only and runs the
block again in backward. A leak is something kept from step to step that nobody meant to keep: most
often a loss with the graph behind it. And when memory is over, the error itself holds the tensors
of the failed attempt until its handler is left.

Claim: gradients of four micro-batches are those of the whole batch (also where the last is
smaller), checkpointed blocks keep fewer bytes and give the same gradients, and stepladder.climb
with the plan "fp32 micro=2" ends at the same weights.

Predict: Six blocks of Linear(32, 64), Tanh and Linear(64, 32) keep 2,304 bytes a row. How many
bytes a row do they keep when each is checkpointed? [bytes a row; recompute = True]

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
        # >>> Weigh this loss so that all micro-batches together give the mean over all rows.
        # ??? Each mse_loss is the mean over its own rows. How do those means make the mean over all
        # ???   rows?
        # ??? Try it with micro-batches of 4, 3 and 1 rows: should each count the same?
        loss = loss * len(x) / num_rows
        # <<< pass
        loss.backward()
        total += loss.item()
    return total


def forward(blocks: Sequence[nn.Module], x: Tensor, *, recompute: bool) -> Tensor:
    """Run the blocks, each under a checkpoint where asked."""
    for block in blocks:
        # >>> Run the block, under a checkpoint where recompute asks for one.
        # ??? torch.utils.checkpoint.checkpoint calls a function with its arguments, and keeps only
        # ???   those.
        # ??? Its help says which value of use_reentrant to choose.
        x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        # <<< x = block(x)
    return x


def history(model: nn.Module, batches: Sequence[Batch]) -> list[float]:
    """The loss on every batch, to be shown later."""
    losses: list[float] = []
    for x, y in batches:
        loss = mse_loss(model(x), y)
        # >>> Keep the number and nothing else of this step.
        # ??? What does a loss still refer to, as long as somebody holds it?
        # ??? A tensor of one number gives it as a float: by which method?
        losses.append(loss.item())
        # <<< losses.append(loss)  # type: ignore[arg-type]
    return losses


def largest(fits: Callable[[int], bool]) -> int:
    """The largest size that fits, if 1 does: found in about 2 log n trials."""
    size = 1
    while fits(2 * size):
        size *= 2
    # >>> Close the gap between what fits and what does not.
    # ??? After the loop above, which size is known to fit, and which not to?
    # ??? Try the one in the middle. Which end does it replace if it fits, and which if it does not?
    # ??? When is there nothing left to try? Write both ends down for a true answer of 100.
    too_large = 2 * size
    while too_large - size > 1:
        middle = (size + too_large) // 2
        size, too_large = (middle, too_large) if fits(middle) else (size, middle)
    # <<< pass
    return size


def halve_until_it_fits(attempt: Callable[[int], float], size: int) -> tuple[int, float]:
    """Try a step with this many rows, and with half as many after each MemoryError."""
    while True:
        # >>> Give the size and the loss of the first attempt that fits. A failed attempt must be
        # >>> gone by then.
        # ??? While the block under `except` runs, the error lives, and with it the frames it came
        # ???   through.
        # ??? What may be done in the handler, then, and what has to wait until it is left?
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
