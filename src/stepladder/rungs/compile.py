"""Rung: let torch's compiler fuse what stands between the matrix products.

Where blocks are alike the compiler works on one and the code serves them all, so a deep model
starts as fast as a shallow one. Each call of a compiled block costs the host about a millisecond,
which large blocks hide and small ones do not: on an H200 a step of GPT-2 124M (7 M parameters a
block) took 70 ms by block and 59 ms whole, one of Llama 1B (61 M a block) 498 ms either way, with
its first step after 4 s instead of 25. So on a GPU in a world of one, small blocks are compiled
with the whole module around them. Blocks that differ in shape, as a convolutional net's do, would
make the compiler work again for each and give up after eight; then it is the whole module too.
`nn.Module.compile` replaces the call, not the module, so class and parameter names stay.

[Note: graphs] A small model's kernels end sooner than the host can start the next. Recorded as a
CUDA graph, a whole forward or backward pass is started once. What a graph made is overwritten when
it is replayed, so gradients of a second pass cannot be added to those of the first: one pass a
step, on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.plan import Plan

LARGE = 20_000_000  # parameters of a block that hides what its call costs the host


def compile_module(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    *,
    whole: bool = False,
    graphs: bool = False,
    stage: bool = False,
) -> None:
    """Compile each of several like blocks, or the whole module where that is faster or asked.

    Args:
        stage: the module is a pipeline's stage, whose forward is left in the middle: blocks alone.
    """
    parts = [block for _, block in blocks]
    by_block = stage or (alike(parts) and not graphs and not (whole and are_small(parts)))
    for part in parts if by_block else [module]:
        part.compile(mode="reduce-overhead" if graphs else None)


def are_small(blocks: Sequence[nn.Module]) -> bool:
    """Whether the host would be late for the next block's call."""
    return sum(p.numel() for p in blocks[0].parameters()) < LARGE


def graph_problems(plan: Plan, device: torch.device) -> list[PlanError]:
    """Why what is compiled cannot be recorded: see [Note: graphs]."""
    if not plan.graphs:
        return []
    found = []
    if device.type != "cuda":
        problem = f"{device.type} records none; CUDA devices do"
        found.append(PlanError("graphs", problem, "Leave graphs out."))
    if plan.layout.num_ranks > 1:
        problem = f"are recorded on one rank, and {plan.layout} has {plan.layout.num_ranks}"
        found.append(PlanError("graphs", problem, "Leave graphs out."))
    if plan.batch.micro not in (None, plan.batch.sequences):
        problem = f"take a batch in one pass, and micro={plan.batch.micro} may make several"
        found.append(PlanError("graphs", problem, "Leave micro or graphs out."))
    if "activations" in plan.offload:
        problem = "keep activations where they were recorded, and offload moves them"
        found.append(PlanError("graphs", problem, "Leave offload or graphs out."))
    return found


def alike(blocks: Sequence[nn.Module]) -> bool:
    """Whether one block's compiled code serves every other."""
    signatures = {
        (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        for block in blocks
    }
    return len(blocks) > 1 and len(signatures) == 1
