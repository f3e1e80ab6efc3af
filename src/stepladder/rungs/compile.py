"""Rung: let torch's compiler fuse what stands between the matrix products.

Where blocks are alike the compiler works on one and the code serves them all, so a deep model
starts as fast as a shallow one. Where they differ in shape, as a convolutional net's do, it would
work again for each and give up after eight, so the whole module is compiled at once instead.
`nn.Module.compile` replaces the call, not the module, so class and parameter names stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def compile_module(module: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Compile each of several like blocks, or the whole module where they are not alike."""
    parts = [block for _, block in blocks]
    for part in parts if alike(parts) else [module]:
        part.compile()


def alike(blocks: Sequence[nn.Module]) -> bool:
    """Whether one block's compiled code serves every other."""
    signatures = {
        (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        for block in blocks
    }
    return len(blocks) > 1 and len(signatures) == 1
