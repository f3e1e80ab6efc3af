"""The rates of this machine that forecasts are made of, timed one by one."""

from .calibrate import calibrate

__all__ = [
    "calibrate",
]
