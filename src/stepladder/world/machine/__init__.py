"""This machine: devices, memory, versions and what works on it."""
