"""Rungs that compute in fewer bits."""
