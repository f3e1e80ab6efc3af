"""Rung: let torch's compiler fuse what stands between the matrix products.

Where blocks are alike the compiler works on one and the code serves them all, so a deep model
starts as fast as a shallow one. Each call of a compiled block costs the host about a millisecond,
which large blocks hide and small ones do not: on an H200 a step of GPT-2 124M (7 M parameters a
block) took 70 ms by block and 59 ms whole, one of Llama 1B (61 M a block) 498 ms either way, with
its first step after 4 s instead of 25. So on a GPU in a world of one, small blocks are compiled
with the whole module around them. Blocks that differ in shape, as a convolutional net's do, would
make the compiler work again for each and give up after eight; then it is the whole module too.
`nn.Module.compile` replaces the call, not the module, so class and parameter names stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torch import nn

from stepladder.plan.shared_constants import LARGE_BLOCK


def compile_module(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    *,
    whole: bool = False,
    stage: bool = False,
    tried: bool = False,
    selective: bool = False,
) -> None:
    """Compile each of several like blocks, or the whole module where that is faster or asked.

    Args:
        stage: the module is a pipeline's stage, whose forward is left in the middle: blocks alone.
        tried: large products go the way that a trial finds fastest (product_pass.py).
        selective: blocks make again what no product gave.
    """
    parts = [block for _, block in blocks]
    by_block = stage or (alike(parts) and not (whole and are_small(parts)))
    options = (
        trying(selective=selective) if tried else None
    )  # the same for all: else each block is compiled anew
    for part in parts if by_block else [module]:
        part.compile(options=options)


def trying(*, selective: bool = False) -> dict[str, Any]:
    """The compiler's options by which what is ours takes its places in the graph."""
    # Imported only here: it brings all of the compiler along, which takes seconds.
    names = ("pre_grad_pass", "epilogue_pass", "matmul_pass")
    own, endings, products = (import_module(f".{name}", __package__) for name in names)
    return {
        "pre_grad_custom_pass": own.ModulePass(selective=selective),
        "joint_custom_post_pass": endings.EndingPass(),
        "post_grad_custom_post_pass": products.ProductPass(),
    }


def are_small(blocks: Sequence[nn.Module]) -> bool:
    """Whether the host would be late for the next block's call."""
    return sum(p.numel() for p in blocks[0].parameters()) < LARGE_BLOCK


def alike(blocks: Sequence[nn.Module]) -> bool:
    """Whether one block's compiled code serves every other."""
    signatures = {
        (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        for block in blocks
    }
    return len(blocks) > 1 and len(signatures) == 1
