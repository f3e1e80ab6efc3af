"""How a module's output becomes one number, and how many targets that number is a mean over."""

from .find_weighting import (
    ClassWeights,
    all_fits,
    classes_of,
    count_classes,
    first_of_best,
    observe_all,
    propose,
    weigh_values,
)
from .loss import NO_LOSS, Loss, make_loss
from .observe_pieces import OFTEN_IGNORED, Observation
from .weighting import Weighting, by_class

__all__ = [
    "NO_LOSS",
    "OFTEN_IGNORED",
    "ClassWeights",
    "Loss",
    "Observation",
    "Weighting",
    "all_fits",
    "by_class",
    "classes_of",
    "count_classes",
    "first_of_best",
    "make_loss",
    "observe_all",
    "propose",
    "weigh_values",
]
