"""Rungs that trade time for memory: activation checkpointing and offloading."""
