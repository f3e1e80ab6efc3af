"""Checks of the capstones."""
