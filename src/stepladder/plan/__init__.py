"""What we intend: a plan is a frozen value, and is text. Standard library only."""

from .accelerate import read_accelerate
from .batch import Batch, share, uneven_share
from .carried import Carried, Left
from .choices import LARGE_BLOCK, Compress, Recompute, Schedule
from .compose import (
    adafactor_needs_whole_matrices,
    composition_problems,
    compression_needs_copies,
    compression_needs_whole_matrices,
    factors_need_a_steady_scale,
    kernels_need_one_rank,
    parameters_leave_in_slices,
)
from .deepspeed import read_deepspeed
from .layout import AXES, REST, Layout
from .optimizer import MOMENTS as OPTIMIZERS
from .optimizer import Group, Optimizer
from .plan import Plan
from .precision import BF16, BF16_PURE, BYTES, FP8, FP16, FP32, PRECISIONS, TF32, Precision
from .rate import KINDS as RATES
from .rate import Rate, scale_rate
from .recipe import (
    NONFINITE,
    SECTIONS,
    SPIKE,
    DataChoice,
    ModelChoice,
    Recipe,
    TrainChoice,
    read_recipe,
)
from .refit import Refit, refit
from .stages import balance_blocks, chunk_indices, cut_blocks, split_blocks
from .text import ALL_WORDS as PLAN_WORDS
from .text import ATTENTIONS, OFFLOADS
from .text import KEYS as PLAN_KEYS
from .turns import (
    fills,
    interleaving_turns,
    passes_fill_stages,
    virtual_needs_pipeline,
    whole_rounds,
    zero_bubble_keeps_parameters,
    zero_bubble_runs_again_twice,
    zero_bubble_splits_what_it_sees,
)

__all__ = [
    "ATTENTIONS",
    "AXES",
    "BF16",
    "BF16_PURE",
    "BYTES",
    "FP8",
    "FP16",
    "FP32",
    "LARGE_BLOCK",
    "NONFINITE",
    "OFFLOADS",
    "OPTIMIZERS",
    "PLAN_KEYS",
    "PLAN_WORDS",
    "PRECISIONS",
    "RATES",
    "REST",
    "SECTIONS",
    "SPIKE",
    "TF32",
    "Batch",
    "Carried",
    "Compress",
    "DataChoice",
    "Group",
    "Layout",
    "Left",
    "ModelChoice",
    "Optimizer",
    "Plan",
    "Precision",
    "Rate",
    "Recipe",
    "Recompute",
    "Refit",
    "Schedule",
    "TrainChoice",
    "adafactor_needs_whole_matrices",
    "balance_blocks",
    "chunk_indices",
    "composition_problems",
    "compression_needs_copies",
    "compression_needs_whole_matrices",
    "cut_blocks",
    "factors_need_a_steady_scale",
    "fills",
    "interleaving_turns",
    "kernels_need_one_rank",
    "parameters_leave_in_slices",
    "passes_fill_stages",
    "read_accelerate",
    "read_deepspeed",
    "read_recipe",
    "refit",
    "scale_rate",
    "share",
    "split_blocks",
    "uneven_share",
    "virtual_needs_pipeline",
    "whole_rounds",
    "zero_bubble_keeps_parameters",
    "zero_bubble_runs_again_twice",
    "zero_bubble_splits_what_it_sees",
]
