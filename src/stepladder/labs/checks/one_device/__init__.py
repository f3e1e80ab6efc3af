"""Checks of the first course: one device."""
