"""Recomputed blocks that write to their own buffers, under the compiler.

torch (2.11, 2.13) recomputes a block of a compiled graph from the buffers that its first run left
and not from those it found: a block that reads what it writes gets other gradients, and writes
again. Whether a block does so shows only when it runs. So the first batch runs once more than it
counts; blocks that wrote are kept out of the compiler, where recompute.py has their buffers as they
were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import nn

from stepladder.model.forward_state import PartState, read_state, state_restored
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.seam.modules import buffers_of

from .recompute import forward_checkpointed

Blocks = Sequence[tuple[str, nn.Module]]


def may_write_buffers(blocks: Blocks) -> list[tuple[str, nn.Module]]:
    """Recomputed blocks with buffers that are not BatchNorm's, which nothing reads in training."""
    return [(name, block) for name, block in blocks if is_recomputed(block) and has_buffers(block)]


def is_recomputed(block: nn.Module) -> bool:
    forward = vars(block).get("forward")
    return isinstance(forward, partial) and forward.func is forward_checkpointed


def has_buffers(block: nn.Module) -> bool:
    known = set(batch_norms(block))
    return any(buffers_of(part) for part in block.modules() if part not in known)


def keep_writers_uncompiled(
    blocks: Blocks, module: nn.Module, run_batch: Callable[[], Any]
) -> list[str]:
    """Run a batch that leaves no trace; a note for each block that wrote to its buffers."""
    with state_restored(module):
        before = [(name, block, read_state(block)) for name, block in blocks]
        run_batch()
        found = [(name, block) for name, block, state in before if any(map(has_changed, state))]
    for _, block in found:
        leave_uncompiled(block)
    said = "writes to its buffers: it is recomputed without the compiler"
    return [f"block '{name}' {said}" for name, _ in found]


def has_changed(state: PartState) -> bool:
    now = buffers_of(state.part)
    return now.keys() != state.buffers.keys() or any(
        not is_same(now[name], buffer) for name, buffer in state.buffers.items()
    )


def is_same(now: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    if now is None or before is None:
        return now is before
    return now.shape == before.shape and bool(torch.equal(now, before))


def leave_uncompiled(block: nn.Module) -> None:
    """Have a recomputed block run outside of compiled graphs."""
    forward = vars(block)["forward"]
    *given, _ = forward.args
    again = partial(forward_checkpointed, *given, False)
    block.forward = update_wrapper(again, forward.args[0])
