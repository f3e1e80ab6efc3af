"""All courses in the order in which they are learned: the list that `stepladder lab` shows."""

from __future__ import annotations

from stepladder.errors import StepladderError, nearest

from .lab import Course, Lab, Picture
from .many_devices import MANY_DEVICES, MANY_DEVICES_BONUS

FOUNDATIONS = Course(
    "Foundations",
    (
        Lab(
            "loss-scale",
            "How the loss scale moves",
            seconds=2,
            library="torch.amp.GradScaler",
            rungs=("scaling",),
            picture=Picture("step", ("scale",), log="y"),
        ),
    ),
)

COURSES = (FOUNDATIONS, MANY_DEVICES, MANY_DEVICES_BONUS)


def all_labs() -> tuple[Lab, ...]:
    return tuple(lab for course in COURSES for lab in course.labs)


def find_lab(name: str) -> Lab:
    """The lab of this name, or a line with the nearest one."""
    labs = {lab.name: lab for lab in all_labs()}
    if name not in labs:
        raise StepladderError("lab", f"there is no lab called '{name}'", nearest(name, labs))
    return labs[name]
