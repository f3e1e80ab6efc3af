"""Rung: let torch's compiler fuse what stands between the matrix products.

On a GPU in a world of one the whole module is one region, so that what ends one block fuses with
what begins the next. Elsewhere, where blocks are alike, the compiler works on one and the code
serves them all: a deep model starts as fast as a shallow one, and engines that gather a block's
parameters around its call find the call where it was. Blocks that differ in shape, as a
convolutional net's do, would make it work again for each and give up after eight; then the whole
module is compiled too. `nn.Module.compile` replaces the call, not the module, so class and
parameter names stay.

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

DEEPEST = 48  # blocks of one region: its first step takes some 3 s a block on an H200's host


def compile_module(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    *,
    whole: bool = False,
    graphs: bool = False,
) -> None:
    """Compile the whole module, or each of several like blocks where that was not asked for."""
    parts = [block for _, block in blocks]
    at_once = graphs or (whole and len(parts) <= DEEPEST)
    for part in parts if alike(parts) and not at_once else [module]:
        part.compile(mode="reduce-overhead" if graphs else None)


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
