"""Lessons that end in a checked number: each a claim, a run, the numbers and an assertion."""

from .catalogue.courses import all_labs
from .grading.examine import judge
from .lesson_text import claim, parts_left, solution, starter

__all__ = [
    "all_labs",
    "claim",
    "judge",
    "parts_left",
    "solution",
    "starter",
]
