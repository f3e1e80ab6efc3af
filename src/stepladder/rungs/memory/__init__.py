"""Less memory for more time: activation checkpointing, offloading, a memory limit."""
