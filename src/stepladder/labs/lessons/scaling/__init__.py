"""Scaling: starting ranks, sharing data among them, and what more devices are worth."""
