"""Lessons of the first course: one device."""
