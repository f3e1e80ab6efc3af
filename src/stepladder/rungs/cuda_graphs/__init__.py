"""Recorded steps: a step's kernels launched by one call."""
