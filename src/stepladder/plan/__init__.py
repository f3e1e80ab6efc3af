"""Training plans: precision, layout, batch and optimizer as frozen values with a text form.

Standard library only.
"""

from .batch import BatchSplit
from .layout import AXES, Layout
from .learning_rate import Rate
from .optimizer import Optimizer
from .options import Recompute, Schedule
from .plan import Plan
from .precision import BF16, FP32, PRECISIONS, Precision
from .recipe import Recipe, read_recipe
from .settled.settled_plan import SettledPlan

__all__ = [
    "AXES",
    "BF16",
    "FP32",
    "PRECISIONS",
    "BatchSplit",
    "Layout",
    "Optimizer",
    "Plan",
    "Precision",
    "Rate",
    "Recipe",
    "Recompute",
    "Schedule",
    "SettledPlan",
    "read_recipe",
]
