"""Calibration: measured rates of this machine, which forecasts then use."""

from .calibrate import calibrate

__all__ = [
    "calibrate",
]
