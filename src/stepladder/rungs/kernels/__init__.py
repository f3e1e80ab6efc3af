"""Kernels written by hand where one pass over memory replaces several.

Each works on any device: Triton programs on a GPU, the same arithmetic in torch elsewhere.
"""

from .adamw import adamw_
from .cross_entropy import cross_entropy
from .float8 import float8_linear
from .linear_cross_entropy import linear_cross_entropy
from .rmsnorm import rms_norm

__all__ = ["adamw_", "cross_entropy", "float8_linear", "linear_cross_entropy", "rms_norm"]
