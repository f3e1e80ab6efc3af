"""A run on machines reached by ssh."""
