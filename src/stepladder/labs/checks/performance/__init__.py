"""Checks of the labs on performance."""
