"""The plans that are tried: the same mathematics, compiled and fused in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from stepladder.kernels import are_alike, has_convolutions
from stepladder.model import find_anatomy
from stepladder.plan import Plan

Kernels = bool | tuple[str, ...]
WITHOUT_LAYOUT = ("head", "matmuls")


def candidates(
    plan: Plan, module: nn.Module, written: frozenset[str], *, several: bool = False
) -> list[Plan]:
    """The plan without compilation, which the others are held against, and then the best guesses.

    Args:
        written: words that the user wrote, which are kept.
        several: ranks exchange gradients while backward runs, block by block.
    """
    ways = [(plan.compile if "compile" in written else compiled,
             plan.kernels if "kernels" in written else kernels)
            for compiled, kernels in ways_to_run(module, several)]  # fmt: skip
    return [replace(plan, compile=way[0], kernels=way[1]) for way in dict.fromkeys(ways)]


def recorded(plan: Plan) -> Plan:
    """The plan with its steps recorded, and the kernels under which the module's Python is asked
    before each replay: the fused loss is outside of the compiled graph."""
    kernels = ("layout", "matmuls") if plan.kernels is True else plan.kernels
    if isinstance(kernels, tuple):
        kernels = tuple(kernel for kernel in kernels if kernel != "head")
    return replace(plan, graphs=True, kernels=kernels or False)


def ways_to_run(module: nn.Module, several: bool) -> Iterator[tuple[bool | str, Kernels]]:
    """What is compiled in one piece, and which kernels are used.

    Plain compilation comes early: kernels that try their matmuls may spend the whole budget, and
    nothing may be chosen that is slower than what a user would write.
    """
    yield False, False
    anatomy = find_anatomy(module)
    blocks = anatomy.blocks_of(module) if anatomy.blocks else []
    alike = are_alike([block for _, block in blocks])
    if several and alike:  # a whole module has its gradients all at once, and none to send before
        yield "blocks", False
        yield "blocks", True
        return
    yield "whole", False
    yield "whole", True
    if has_convolutions(module):  # channels-last is slower for some nets
        yield "whole", WITHOUT_LAYOUT
    if alike:
        yield "blocks", True
