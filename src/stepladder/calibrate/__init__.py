"""Calibration: measured rates of this machine, which forecasts then use."""

from .calibrate import calibrate
from .first_look import speeds_here

__all__ = [
    "calibrate",
    "speeds_here",
]
