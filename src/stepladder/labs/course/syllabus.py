"""All units in the order in which they are learned: what `stepladder course` lists."""

from __future__ import annotations

from stepladder.errors import StepladderError, nearest
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.lab import Lab

from .unit import CoursePart, Unit
from .units.capstones import CAPSTONES
from .units.many_gpus import MANY_GPUS
from .units.many_nodes import MANY_NODES_AND_FAULTS
from .units.memory_and_precision import MEMORY_AND_PRECISION
from .units.one_gpu import ONE_GPU

PARTS: tuple[CoursePart, ...] = (
    ONE_GPU,
    MEMORY_AND_PRECISION,
    MANY_GPUS,
    MANY_NODES_AND_FAULTS,
    CAPSTONES,
)


def all_units() -> tuple[Unit, ...]:
    """Every unit, in the order of the course."""
    return tuple(unit for part in PARTS for unit in part.units)


def find_unit(name: str) -> Unit:
    """The unit of this name, or a line with the nearest one."""
    units = {unit.name: unit for unit in all_units()}
    if name not in units:
        raise StepladderError("unit", f"there is no unit called '{name}'", nearest(name, units))
    return units[name]


def labs_in_order() -> tuple[Lab, ...]:
    """Every lab, in the order in which the course comes to it; bonus ones come last."""
    required = [name for unit in all_units() for name in unit.labs]
    bonus = [name for unit in all_units() for name in unit.bonus_labs]
    return tuple(find_lab(name) for name in [*required, *bonus])
