"""The memory forecast: bytes on a rank by owner, at the step's peak."""
