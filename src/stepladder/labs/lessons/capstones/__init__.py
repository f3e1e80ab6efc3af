"""Lessons of the capstones."""
