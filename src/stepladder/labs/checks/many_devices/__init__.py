"""Checks of the second course: many devices."""
