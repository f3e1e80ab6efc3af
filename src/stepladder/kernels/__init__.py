"""Faster kernels: fused losses and updates, layouts, fp8, torch.compile with our graph passes."""

from .channels_last import has_convolutions
from .choose import Chosen, KernelChoice, choose
from .convert_float8 import convert_linears, float8_problems
from .cross_entropy import cross_entropy
from .graph.compile import have_one_structure
from .graph.replayable_call import GraphCall, ReplayableCall
from .linear_cross_entropy import linear_cross_entropy
from .optimizer.adamw import adamw_

__all__ = [
    "Chosen",
    "GraphCall",
    "KernelChoice",
    "ReplayableCall",
    "adamw_",
    "choose",
    "convert_linears",
    "cross_entropy",
    "float8_problems",
    "has_convolutions",
    "have_one_structure",
    "linear_cross_entropy",
]
