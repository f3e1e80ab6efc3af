"""All courses in the order in which they are learned: the list that `stepladder lab` shows."""

from __future__ import annotations

from stepladder.errors import StepladderError, nearest
from stepladder.labs.lab import Lab

from .capstones import CAPSTONES
from .many_devices import MANY_DEVICES, MANY_DEVICES_BONUS
from .one_device import FOUNDATIONS, ONE_DEVICE, ONE_DEVICE_BONUS
from .performance import PERFORMANCE
from .scaling import SCALING

COURSES = (
    FOUNDATIONS,
    ONE_DEVICE,
    ONE_DEVICE_BONUS,
    PERFORMANCE,
    MANY_DEVICES,
    MANY_DEVICES_BONUS,
    SCALING,
    CAPSTONES,
)


def all_labs() -> tuple[Lab, ...]:
    """Every lab, in the order of the courses."""
    return tuple(lab for course in COURSES for lab in course.labs)


def find_lab(name: str) -> Lab:
    """The lab of this name, or a line with the nearest one."""
    labs = {lab.name: lab for lab in all_labs()}
    if name not in labs:
        raise StepladderError("lab", f"there is no lab called '{name}'", nearest(name, labs))
    return labs[name]
