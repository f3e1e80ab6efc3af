"""Streams: sources of samples without an index, read one after another."""
