"""Rung: multiply large linears in 8 bits, each tensor with a scale found as it is used.

torchao's linears do the work (tensorwise scales, computed anew each step), or where kernels=on
those of float8_linear.py, which cast less. Owned here is the choice of linears. One of `in` ×
`out` features saves time in proportion to in · out per token and pays for casting and measuring
in + out numbers per token, so what counts is in · out / (in + out): about 512 where gain and cost
meet on an H100 (989 against 1,979 TFLOP/s in three products a step; 5 bytes at 3.35 TB/s for each
number cast). The matrix units take multiples of 16. The last linear makes the logits, whose small
differences the loss reads; it stays as it is, save in the fused loss of kernels=on.

torchao is found by name when asked for, so that importing this package needs none of it.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import Any

from torch import Tensor, nn

from stepladder.errors import PlanError

from .float8_linear import float8_linear

TILE = 16  # what fp8 matrix units take on both sides
WORTHWHILE = 512  # in · out / (in + out), see above
# With our own casts: 700 against 1,400 TFLOP/s on an H200, 6 bytes at 4 TB/s, inputs often shared.
WORTHWHILE_OURS = 384
REMEDY = "Install it: pip install torchao; or add kernels=on, on one device; or use bf16."


def convert_linears(module: nn.Module, skip: Collection[nn.Module], *, ours: bool = False) -> None:
    """Make the linears that gain from it multiply in fp8; names and types of parameters stay.

    Args:
        ours: with our own kernels, which need no package.
    """
    for problem in [] if ours else float8_problems():
        raise problem
    chosen = float8_linears(module, skip, WORTHWHILE_OURS if ours else WORTHWHILE)
    if not chosen:
        raise PlanError(
            "precision",
            f"fp8 pays for none of the {_count_linears(module)} linears of {type(module).__name__} "
            f"(multiples of {TILE}, at least 1024 × 1024 or as good)",
            "bf16 is as fast for it.",
        )
    if ours:
        for name in chosen:
            part = module.get_submodule(name)
            part.forward = MethodType(multiply_in_8_bits, part)
        return
    torchao = import_module("torchao.float8")
    torchao.convert_to_float8_training(module, module_filter_fn=lambda _, name: name in chosen)


def multiply_in_8_bits(linear: Any, inputs: Tensor) -> Tensor:
    return float8_linear(inputs, linear.weight, linear.bias)


def float8_linears(
    module: nn.Module, skip: Collection[nn.Module] = (), least: int = WORTHWHILE
) -> frozenset[str]:
    """Names of the linears that gain from fp8."""
    linears = {n: part for n, part in module.named_modules() if isinstance(part, nn.Linear)}
    last = next(reversed(linears), None)
    return frozenset(
        name
        for name, part in linears.items()
        if name != last
        and part not in skip
        and is_plain(part)
        and gains(part.in_features, part.out_features, least)
    )


def is_plain(linear: nn.Linear) -> bool:
    """Whether it computes nothing but the product, which another may then compute for it."""
    return type(linear).forward is nn.Linear.forward and "forward" not in vars(linear)


def gains(in_features: int, out_features: int, least: int = WORTHWHILE) -> bool:
    """Whether a linear of this shape multiplies faster in fp8 than its casts cost."""
    fits = in_features % TILE == 0 and out_features % TILE == 0
    return fits and in_features * out_features >= least * (in_features + out_features)


def float8_problems() -> list[PlanError]:
    """What this installation lacks for fp8."""
    if find_spec("torchao") is not None:
        return []
    problem = "fp8 needs the package 'torchao', which is not installed"
    return [PlanError("precision", problem, REMEDY)]


def _count_linears(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Linear) for part in module.modules())
