"""Recomputed blocks that write to their own buffers, under the compiler.

torch (2.11, 2.13) recomputes a block of a compiled graph from the buffers that its first run left
and not from those it found: a block that reads what it writes gets other gradients, and writes
again. Whether a block does so shows only when it runs. So the first batch runs once more than it
counts; blocks that wrote are kept out of the compiler, where recompute.py has their buffers as they
were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import nn

from stepladder.model.forward_state import PartState, read_state, state_restored
from stepladder.plan import Plan
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.seam.modules import buffers_of
from stepladder.world import World

from .recompute import forward_checkpointed

Blocks = Sequence[tuple[str, nn.Module]]


@dataclass(slots=True)
class CompiledWrites:
    """Finds the blocks of this rank that write, when the first batch comes."""

    blocks: Blocks = ()  # recomputed, with buffers that are not BatchNorm's
    pending: bool = False  # whether the first batch is still to come, alike on every rank

    @classmethod
    def among(cls, blocks: Blocks, plan: Plan) -> CompiledWrites:
        found = [one for one in blocks if is_recomputed(one[1]) and has_buffers(one[1])]
        return cls(found, bool(plan.compile) and plan.recompute.kind != "none")

    def settle(self, module: nn.Module, world: World, run_batch: Callable[[], Any]) -> list[str]:
        """Before a first batch counts: keep blocks that write out of the compiler, with a note."""
        if not self.pending:
            return []
        # A stage without such blocks runs along with one that has some.
        any_here = torch.tensor(float(bool(self.blocks)), device=world.device)
        several = world.layout.pipeline > 1
        needed = (world.max(any_here, "pipeline") if several else any_here).item()
        notes = keep_writers_uncompiled(self.blocks, module, run_batch) if needed else []
        self.pending = False
        return notes


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
