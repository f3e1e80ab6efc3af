"""The second course: many devices, and its bonus."""

from __future__ import annotations

from .lab import Course

MANY_DEVICES = Course("Second course: many devices", ())

MANY_DEVICES_BONUS = Course("Bonus: many devices", ())
