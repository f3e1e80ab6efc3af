"""Saving a run and resuming it exactly, on the same or another number of ranks."""
