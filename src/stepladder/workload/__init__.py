"""What we train, as numbers. Standard library only."""

from .facts import Attention, Facts, Kept, Launches, Matrix, Moved, Part
from .find_facts import find_facts
from .huggingface_config import shape_of_config
from .presets import find_shape
from .shape import Shape
from .transformer import facts_of_shape

__all__ = [
    "Attention",
    "Facts",
    "Kept",
    "Launches",
    "Matrix",
    "Moved",
    "Part",
    "Shape",
    "facts_of_shape",
    "find_facts",
    "find_shape",
    "shape_of_config",
]
