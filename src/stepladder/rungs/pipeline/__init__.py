"""Rung: pipeline parallel, consecutive blocks on different ranks."""
