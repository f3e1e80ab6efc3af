"""Lessons of the course Foundations."""
