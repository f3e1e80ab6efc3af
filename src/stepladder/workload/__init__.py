"""What we train, as numbers. Standard library only."""

from .config import read_config, shape_of_config
from .convnet import RESNETS
from .facts import Attention, Facts, Kept, Launches, Matrix, Moved, Part, Slow
from .find import facts_of_config, find_facts
from .presets import PRESETS, find_shape
from .shape import Shape, parse_shape
from .transformer import facts_of_shape

__all__ = [
    "PRESETS",
    "RESNETS",
    "Attention",
    "Facts",
    "Kept",
    "Launches",
    "Matrix",
    "Moved",
    "Part",
    "Shape",
    "Slow",
    "facts_of_config",
    "facts_of_shape",
    "find_facts",
    "find_shape",
    "parse_shape",
    "read_config",
    "shape_of_config",
]
