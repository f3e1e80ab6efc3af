"""Settled plans: the legality rules, and the choices that follow from a plan on known ranks."""
