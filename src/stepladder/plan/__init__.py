"""What we intend: a plan is a frozen value, and is text. Standard library only."""

from .batch import Batch, share
from .choices import Compress, Recompute, Schedule
from .layout import AXES, REST, Layout
from .optimizer import Group, Optimizer
from .plan import Plan
from .precision import BF16, BF16_PURE, BYTES, FP8, FP16, FP32, PRECISIONS, TF32, Precision
from .rate import Rate, scale_rate
from .recipe import DataChoice, ModelChoice, Recipe, read_recipe
from .stages import balance_blocks, split_blocks

__all__ = [
    "AXES",
    "BF16",
    "BF16_PURE",
    "BYTES",
    "FP8",
    "FP16",
    "FP32",
    "PRECISIONS",
    "REST",
    "TF32",
    "Batch",
    "Compress",
    "DataChoice",
    "Group",
    "Layout",
    "ModelChoice",
    "Optimizer",
    "Plan",
    "Precision",
    "Rate",
    "Recipe",
    "Recompute",
    "Schedule",
    "balance_blocks",
    "read_recipe",
    "scale_rate",
    "share",
    "split_blocks",
]
