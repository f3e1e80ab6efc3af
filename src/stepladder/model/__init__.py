"""Models: the built-in ones, their anatomy and initial values, and facts traced from any module."""

from .anatomy.anatomy import Anatomy
from .anatomy.find_anatomy import find_anatomy
from .anatomy.tensor_cuts import base_layer
from .build import build
from .builtin.attention import set_attention
from .huggingface.saved_settings import base_model, builtin_shape
from .tracing.copy_module import copy_module, meta_copy
from .tracing.count_flops import count_flops
from .tracing.describe import describe
from .tracing.fake_tensors import uncompiled
from .tracing.selective_checkpoint import worth_saving
from .training_mode import evaluating

__all__ = [
    "Anatomy",
    "base_layer",
    "base_model",
    "build",
    "builtin_shape",
    "copy_module",
    "count_flops",
    "describe",
    "evaluating",
    "find_anatomy",
    "meta_copy",
    "set_attention",
    "uncompiled",
    "worth_saving",
]
