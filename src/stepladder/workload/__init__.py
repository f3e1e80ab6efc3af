"""Workloads: the parameters, FLOPs and activations of a model, as plain numbers (no torch)."""

from .facts import Attention, ElementsByType, Facts, Launches, MatmulFacts, MemoryTraffic, Part
from .find_facts import find_facts
from .huggingface_config import shape_of_config
from .presets import find_shape
from .shape import Shape
from .transformer import facts_of_shape

__all__ = [
    "Attention",
    "ElementsByType",
    "Facts",
    "Launches",
    "MatmulFacts",
    "MemoryTraffic",
    "Part",
    "Shape",
    "facts_of_shape",
    "find_facts",
    "find_shape",
    "shape_of_config",
]
