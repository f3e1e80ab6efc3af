"""Ranks on this machine, started by torchrun's own agent."""
