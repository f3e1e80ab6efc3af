"""Rung: activation checkpointing: save less of the forward pass and recompute it for backward.

`blocks` saves a block's inputs and recomputes the whole block. `selective` also saves what is
expensive to compute, matmuls and attention, and recomputes only the cheap rest: norms, activations,
casts, dropout. There is nothing in between because it would gain nothing: the FLOPs that a saved
matmul spares per byte are its contraction length, which is the model's width for nearly every
matmul of a block, so half-selective blocks lie on the line between selective and full. A `budget`
chooses such a mix. The one matmul far below the line is attention's scores (a short contraction
and a wide result): they are never saved.

Every rule recomputes the first blocks rather than the last. Backward starts at the last block and
materialises a recomputed one in full while it works on it; blocks that were saved at the end have
been freed by the time the recomputed ones need the memory.

A block's `forward` is replaced on the instance: without a wrapper module, the block keeps its class
and its parameters keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from stepladder.errors import PlanError
from stepladder.model import worth_saving
from stepladder.model.forward_state import State, read_state, running_on, versions_of_large
from stepladder.model.tracing.trace_blocks import (
    CACHES,
    Positions,
    cache_positions,
    without_caches,
)
from stepladder.plan import Recompute
from stepladder.rungs.data_parallel.batch_norm import is_combined
from stepladder.rungs.forward_effects.in_place_inputs import checkpoint_on_copies, may_write

from .recompute_budget import BlockCost, Depth, fit_budget
from .saved_results import are_exposed, checkpoint_exposed

WRITES_LARGE = "_writes_large_buffers"


def recompute(
    blocks: Sequence[tuple[str, nn.Module]],
    how: Recompute,
    *,
    costs: Sequence[BlockCost] | None = None,
) -> tuple[str, ...]:
    """Checkpoint the blocks that `how` selects; return their names."""
    depths = choose(len(blocks), how, costs)
    for (_, block), depth in zip(blocks, depths, strict=True):
        restore_forward(block)
        if depth != "kept":
            caches = cache_positions(block.forward)  # here: the compiler cannot read signatures
            traced = is_traceable(block, depth)
            again = partial(forward_checkpointed, block.forward, depth, block, caches, traced)
            block.forward = update_wrapper(again, block.forward)
    return tuple(name for (name, _), depth in zip(blocks, depths) if depth != "kept")


def choose(num_blocks: int, how: Recompute, costs: Sequence[BlockCost] | None) -> list[Depth]:
    """How much of each block is recomputed."""
    match how.kind:
        case "none":
            return ["kept"] * num_blocks
        case "blocks":
            return ["whole"] * num_blocks
        case "selective":
            return ["cheap"] * num_blocks
        case "every":
            return ["whole" if how.repeats(index) else "kept" for index in range(num_blocks)]
    if costs is None or len(costs) != num_blocks:
        raise PlanError(
            "recompute",
            f"a budget needs the measured bytes of {num_blocks} blocks, "
            f"and {len(costs or ())} were given",
            "Measure them with measure_blocks on a sample batch, or choose blocks or selective.",
        )
    return fit_budget(costs, how.budget_bytes)


def fully_recomputed(blocks: Sequence[tuple[str, nn.Module]]) -> frozenset[str]:
    """Names of the blocks that also recompute their matmuls."""
    forwards = ((name, block.__dict__.get("forward")) for name, block in blocks)
    return frozenset(
        name
        for name, forward in forwards
        if isinstance(forward, partial)
        and forward.func is forward_checkpointed
        and forward.args[1] == "whole"
    )


def restore_forward(block: nn.Module) -> None:
    """Restore the forward that the block had before this rung."""
    again = block.__dict__.get("forward")
    if isinstance(again, partial) and again.func is forward_checkpointed:
        before = again.args[0]
        del block.forward
        if block.forward != before:  # it had been replaced before this rung
            block.forward = before


def forward_checkpointed(
    forward: Callable[..., Any],
    depth: Literal["cheap", "whole"],
    block: nn.Module,
    caches: Positions,
    traced: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a block so that backward recomputes it.

    Keyword arguments are passed by position: torch looks only among positional arguments for the
    device whose random state it must restore, and for tensors it may offload.

    Args:
        traced: whether the compiler may have it in one graph.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if not traced and torch.compiler.is_compiling():
        return forward_uncompiled(forward, depth, block, caches, traced, *args, **kwargs)
    call: Callable[..., Any] = partial(call_by_position, forward, tuple(kwargs))
    if not torch.compiler.is_compiling():  # a compiled graph updates buffers once by itself
        call = OneUpdate(block, call)
        call = partial(with_own_casts, call) if depth == "cheap" else call
    named = (CACHES.get(name, value) for name, value in kwargs.items())
    values = [unchanging(value) for value in (*without_caches(args, caches), *named)]
    # Two calls: the compiler accepts context_fn only as a plain function.
    checkpointed = checkpoint_whole if depth == "whole" else checkpoint_cheap
    if torch.compiler.is_compiling():
        return checkpointed(call, *values)
    if depth == "cheap" and are_exposed(block):
        checkpointed = partial(checkpoint_exposed, block)
    if not may_write(block):
        return checkpointed(call, *values)
    return checkpoint_on_copies(block, checkpointed, call, values)


forward_uncompiled = torch.compiler.disable(forward_checkpointed)


def is_traceable(block: nn.Module, depth: Depth) -> bool:
    """Whether the compiler has all of a recomputed block in one graph.

    A collective in forward (BatchNorm over ranks) splits the graph, and what is recomputed would
    update statistics again. Recurrent layers write over results that `selective` keeps.
    """
    kinds = (nn.RNNBase, nn.RNNCellBase) if depth == "cheap" else ()
    parts = list(block.modules())
    return not any(is_combined(part) or isinstance(part, kinds) for part in parts)


def unchanging(value: Any) -> Any:
    """A list or dict as it is now: its owner may add to it before backward, as DenseNet does."""
    return type(value)(value) if type(value) in (list, dict) else value


def checkpoint_whole(call: Callable[..., Any], *values: Any) -> Any:
    return checkpoint(call, *values, use_reentrant=False, preserve_rng_state=True)


def checkpoint_cheap(call: Callable[..., Any], *values: Any) -> Any:
    return checkpoint(
        call, *values, use_reentrant=False, preserve_rng_state=True, context_fn=selective_contexts
    )


class OneUpdate:
    """A block's forward whose recomputation starts from the buffers and attributes that the first
    run had, and whose changes to them are dropped: running statistics are updated once."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        self.block, self.forward = block, forward
        self.before: State | None = None

    def __call__(self, *values: Any) -> Any:
        if self.before is not None:
            with running_on(self.before):
                return self.forward(*values)
        # The block's first call finds out whether it writes to a large buffer.
        large = vars(self.block).get(WRITES_LARGE)
        self.before = read_state(self.block, large=large is not False)
        versions = versions_of_large(self.block)
        made = self.forward(*values)
        vars(self.block)[WRITES_LARGE] = bool(large) or versions_of_large(self.block) != versions
        return made


def with_own_casts(call: Callable[..., Any], *values: Any) -> Any:
    """Call a block without the weights that autocast cast before and kept.

    They are gone by the time of backward, and torch (2.13) refuses a recomputation with one cast
    more than the first run.
    """
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return call(*values)
    finally:
        torch.set_autocast_cache_enabled(kept)


def call_by_position(forward: Callable[..., Any], names: tuple[str, ...], *values: Any) -> Any:
    num_positional = len(values) - len(names)
    return forward(*values[:num_positional], **dict(zip(names, values[num_positional:])))


def selective_contexts() -> tuple[Any, Any]:
    return create_selective_checkpoint_contexts(policy)


def policy(_: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if worth_saving(op, args, kwargs):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
