"""This machine: its devices, memory and versions, and checks of what works on it."""
