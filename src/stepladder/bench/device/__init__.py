"""Measurements of one device: its roofline, and beside the processor."""
