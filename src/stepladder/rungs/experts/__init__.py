"""Mixtures of experts: the router's losses over a whole batch."""
