"""A run as a Ray job."""
