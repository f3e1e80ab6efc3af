"""Measuring on a machine that others use as well."""

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def undisturbed(measure: Callable[[], Found], fine: Callable[[Found], bool]) -> Found:
    """A measurement that is fine, else the fifth of five.

    A busy machine may take the processor away between two marks of the clock, or from one rank
    alone; not each time. What is wrong with the measuring itself is wrong each time.
    """
    for _ in range(4):
        if fine(found := measure()):
            return found
    return measure()
