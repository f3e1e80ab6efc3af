"""Rung: fp8 matmuls in the linears that gain from them, each tensor scaled by its largest value.

torchao's Float8Linear does the work, or with kernels=on float8_linear.py, which casts less. This
file chooses the linears. A linear of `in` × `out` features saves time in proportion to in · out per
token, and pays for casting in + out numbers per token, so what counts is in · out / (in + out):
gain and cost meet at about 512 on an H100 (989 against 1,979 TFLOP/s in three matmuls a step;
5 bytes at 3.35 TB/s for each number cast). The matrix units take multiples of 16. The last linear
makes the logits, whose small differences the loss reads; it stays as it is, except in the fused
loss of kernels=on.

torchao is imported by name when it is needed, so that importing this package does not need it.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from types import MethodType
from typing import Any

from torch import Tensor, nn

from stepladder.errors import PlanError
from stepladder.seam.operators import look_up_scaled_mm

from .float8_linear import TILE, float8_linear

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
        look_up_scaled_mm()
        for name in chosen:
            part = module.get_submodule(name)
            part.forward = MethodType(forward_in_float8, part)
        return
    torchao = import_module("torchao.float8")
    torchao.convert_to_float8_training(module, module_filter_fn=lambda _, name: name in chosen)


def forward_in_float8(linear: Any, inputs: Tensor) -> Tensor:
    return float8_linear(inputs, linear.weight, linear.bias)


def count_converted(module: nn.Module) -> int:
    """Linears of a module that multiply in fp8, by either implementation."""
    ours = (getattr(part.forward, "__func__", None) for part in module.modules())
    theirs = (type(part).__name__ for part in module.modules())
    return sum(each is forward_in_float8 for each in ours) + [*theirs].count("Float8Linear")


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
    """Whether its forward is torch's own, which ours may then replace."""
    return type(linear).forward is nn.Linear.forward and "forward" not in vars(linear)


def gains(in_features: int, out_features: int, least: int = WORTHWHILE) -> bool:
    """Whether a linear of this shape gains more from fp8 matmuls than its casts cost."""
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
