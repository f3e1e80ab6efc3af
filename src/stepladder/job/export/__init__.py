"""A run's model as files that other programs read."""
