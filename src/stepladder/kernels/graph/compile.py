"""Rung: torch.compile, of each block or of the whole module, with our graph passes where asked.

Where blocks are alike, the compiler works on one and its code serves them all, so a deep model
starts as fast as a shallow one. But each call of a compiled block costs the host about a
millisecond, which large blocks hide and small ones do not: on an H200 a step of GPT-2 124M (7 M
parameters a block) took 70 ms by block and 59 ms whole; a step of Llama 1B (61 M a block) took
498 ms either way, and its first step came after 4 s instead of 25. So on one GPU, small blocks are
compiled together with the whole module. Blocks that differ in shape, as in a convolutional net,
would each be compiled anew, and the compiler gives up after eight; then it is the whole module too.
`nn.Module.compile` replaces the call, not the module, so class and parameter names stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from types import FunctionType
from typing import Any

from torch import nn

from stepladder.errors import PlanError
from stepladder.plan import SettledPlan
from stepladder.plan.settled.settled_plan import CompileScope
from stepladder.seam.inductor import takes_passes
from stepladder.seam.modules import call_whole, compile_call

NUMBERS = count()


def compile_scope(blocks: Sequence[nn.Module], settled: SettledPlan) -> tuple[CompileScope, str]:
    """What is compiled in one piece, and why."""
    alike = have_one_structure(blocks)
    size = sum(p.numel() for p in blocks[0].parameters()) if alike else 0
    scope = settled.compile_scope(alike=alike, block_parameters=size)
    each = f"{len(blocks)} alike blocks of {size / 1e6:.3g} M parameters"
    if isinstance(asked := settled.plan.compile, str):
        if asked == "blocks" and not blocks:
            problem = "blocks were asked for, and the module has no list of blocks"
            raise PlanError("compile", problem, "Use compile=whole.")
        because = f"compile={asked}"
    elif settled.layout.pipeline > 1:
        because = "a pipeline stage may stop its forward between two blocks"
    elif not alike:
        because = "its blocks differ" if len(blocks) > 1 else "it has no list of blocks"
    elif scope == "module":
        because = f"{each} would each cost the host a call"
    else:
        because = f"{each} share one compilation"
    return scope, because


def compile_parts(parts: Sequence[nn.Module], options: dict[str, Any] | None) -> None:
    """Compile each part by itself.

    `nn.Module.compile` does nothing for torch's own classes, such as a Sequential or a
    TransformerEncoderLayer: the compiler leaves their frames out unless another's code calls them.

    Args:
        options: one object for all parts: with another for each, each is compiled anew.
    """
    call = with_own_code(call_whole)
    for part in parts:
        if is_of_torch(part):
            compile_call(part, call, options)
        else:
            part.compile(options=options)


def is_of_torch(part: nn.Module) -> bool:
    """Whether what a part runs is written in torch."""
    replaced = "forward" in vars(part)
    return not replaced and type(part).forward.__module__.startswith("torch.nn.")


def with_own_code(function: Callable[..., Any]) -> FunctionType:
    """The function with code that no other run has.

    The compiler keeps graphs by the code they are of. Runs that share it would check each other's
    guards at every step, share a limit of eight graphs, and be compiled for any stride once two
    runs differ in memory layout.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(NUMBERS)}")
    return FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )


def pass_options(*, kernels: bool = True, selective: bool = False) -> dict[str, Any]:
    """Options of torch.compile that run our graph passes; none where this torch takes no passes.

    Args:
        kernels: our kernels were asked for; without, only torch's own calls are put for others.
        selective: blocks use selective activation checkpointing.
    """
    return make_passes(kernels, selective) if takes_passes() else {}


@cache  # code that was compiled for one module serves a copy of it only with the same passes
def make_passes(kernels: bool, selective: bool) -> dict[str, Any]:
    # Imported only here: it brings all of the compiler along, which takes seconds.
    def imported(name: str) -> Any:
        return import_module(f".{name}", __package__)

    pre_grad = imported("pre_grad_pass").PreGradPass(kernels=kernels, selective=selective)
    if not kernels:
        return {"pre_grad_custom_pass": pre_grad}
    return {
        "pre_grad_custom_pass": pre_grad,
        "joint_custom_post_pass": imported("epilogue_pass").EpiloguePass(),
        "post_grad_custom_post_pass": imported("matmul_pass").MatmulPass(),
    }


def have_one_structure(blocks: Sequence[nn.Module]) -> bool:
    """Whether one block's compiled code serves every other."""
    signatures = {
        (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        for block in blocks
    }
    return len(blocks) > 1 and len(signatures) == 1
