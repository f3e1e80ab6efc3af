"""Adam whose masters and moments take 14, 10 or 7 bytes a parameter, and its checkpoints."""
