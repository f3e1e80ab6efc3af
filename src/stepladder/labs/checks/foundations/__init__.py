"""Checks of the course Foundations."""
