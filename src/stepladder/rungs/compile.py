"""Rung: let torch's compiler fuse what stands between the matrix products.

Blocks are compiled one by one when there are several alike: the compiler works once and the code
serves them all, so a deep model starts as fast as a shallow one. `nn.Module.compile` replaces the
call, not the module, so class and parameter names stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def compile_module(module: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Compile the blocks, or the whole module where it has none."""
    for part in [block for _, block in blocks] or [module]:
        part.compile()
