"""What the module is: its anatomy, its cost, its first values; and the built-in models."""

from .anatomy.anatomy import Anatomy
from .anatomy.find_anatomy import find_anatomy
from .anatomy.tensor_cuts import carried
from .build import build
from .builtin.attention import set_attention
from .huggingface.saved_settings import bare, own_shape
from .tracing.count_flops import count_flops
from .tracing.describe import describe
from .tracing.fake_tensors import blueprint, uncompiled
from .tracing.selective_checkpoint import is_dear

__all__ = [
    "Anatomy",
    "bare",
    "blueprint",
    "build",
    "carried",
    "count_flops",
    "describe",
    "find_anatomy",
    "is_dear",
    "own_shape",
    "set_attention",
    "uncompiled",
]
