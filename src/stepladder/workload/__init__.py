"""What we train, as numbers. Standard library only."""

from .presets import PRESETS, find_shape
from .shape import Shape, parse_shape

__all__ = ["PRESETS", "Shape", "find_shape", "parse_shape"]
