"""Faster kernels: fused losses and updates, layouts, fp8, torch.compile with our graph passes."""

from .adamw import adamw_
from .choose import Chosen, KernelChoice, choose
from .convert_float8 import convert_linears, float8_problems
from .cross_entropy import cross_entropy
from .linear_cross_entropy import linear_cross_entropy

__all__ = [
    "Chosen",
    "KernelChoice",
    "adamw_",
    "choose",
    "convert_linears",
    "cross_entropy",
    "float8_problems",
    "linear_cross_entropy",
]
