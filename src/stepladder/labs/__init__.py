"""Lessons that end in a checked number: each a claim, a run, the numbers and an assertion."""

from .courses import COURSES, all_labs, find_lab
from .examine import judge, numbers
from .finding import Finding
from .lab import Course, Lab, Picture
from .text import claim, parts_left, solution, starter

__all__ = [
    "COURSES",
    "Course",
    "Finding",
    "Lab",
    "Picture",
    "all_labs",
    "claim",
    "find_lab",
    "judge",
    "numbers",
    "parts_left",
    "solution",
    "starter",
]
