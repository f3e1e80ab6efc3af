"""The plans that are tried: the same mathematics, compiled and fused in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from stepladder.kernels import has_convolutions, have_one_structure
from stepladder.kernels.fused_head import why_not_fused
from stepladder.loss import Loss
from stepladder.model import find_anatomy
from stepladder.plan import Plan, SettledPlan

Kernels = bool | tuple[str, ...]
WITHOUT_HEAD, WITHOUT_LAYOUT, WITHOUT_MATMULS = (
    ("layout", "matmuls"), ("head", "matmuls"), ("head", "layout"),
)  # fmt: skip


def candidates(
    plan: Plan,
    module: nn.Module,
    written: frozenset[str],
    *,
    several: bool = False,
    fuses_head: bool = False,
) -> list[Plan]:
    """The plan without compilation, which the others are held against, and then the best guesses.

    Args:
        written: words that the user wrote, which are kept.
        several: ranks exchange gradients while backward runs, block by block.
        fuses_head: kernels would fuse the module's head with its loss.
    """
    ways = [(plan.compile if "compile" in written else compiled,
             plan.kernels if "kernels" in written else kernels)
            for compiled, kernels in ways_to_run(module, several, fuses_head)]  # fmt: skip
    return [replace(plan, compile=way[0], kernels=way[1]) for way in dict.fromkeys(ways)]


def recorded(plan: Plan) -> Plan:
    """The plan with its steps recorded, and the kernels under which the module's Python is asked
    before each replay: the fused loss is outside of the compiled graph."""
    kernels = ("layout", "matmuls") if plan.kernels is True else plan.kernels
    if isinstance(kernels, tuple):
        kernels = tuple(kernel for kernel in kernels if kernel != "head")
    return replace(plan, graphs=True, kernels=kernels or False)


def in_micro_batches(plan: Plan, rows: int) -> list[Plan]:
    """The plan with a batch of so many rows in halves, quarters and so on, if it is in one now."""
    if plan.batch.micro is not None or plan.batch.micro_batches not in (None, 1):
        return []
    sizes = [rows >> times for times in range(1, rows.bit_length())]
    return [replace(plan, batch=replace(plan.batch, micro=size)) for size in sizes]


def fuses_head(module: nn.Module, loss: Loss, settled: SettledPlan) -> bool:
    """Whether kernels fuse the head with its loss, as far as its structure tells."""
    asked = replace(settled, plan=replace(settled.plan, kernels=True))
    return not why_not_fused(module, find_anatomy(module), loss, asked)


def ways_to_run(
    module: nn.Module, several: bool, fuses_head: bool
) -> Iterator[tuple[bool | str, Kernels]]:
    """What is compiled in one piece, and which kernels are used.

    Plain compilation comes early: kernels that try their matmuls may spend the whole budget, and
    nothing may be chosen that is slower than what a user would write.
    """
    yield False, False
    anatomy = find_anatomy(module)
    blocks = anatomy.blocks_of(module) if anatomy.blocks else []
    alike = have_one_structure([block for _, block in blocks])
    if several and alike:  # a whole module has its gradients all at once, and none to send before
        yield "blocks", False
        yield "blocks", True
        return
    yield "whole", False
    yield "whole", True
    convolves = has_convolutions(module)
    if convolves:  # channels-last is slower for some nets
        yield "whole", WITHOUT_LAYOUT
    if fuses_head:  # and a fused head for some vocabularies
        yield "whole", WITHOUT_HEAD
    if convolves or fuses_head:
        yield "whole", WITHOUT_MATMULS
    if alike:
        yield "blocks", True
        yield "blocks", False
