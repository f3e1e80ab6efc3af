"""Lessons of the second course: many devices."""
