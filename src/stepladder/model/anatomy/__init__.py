"""A model's anatomy: entry, blocks, exit, and where tensor parallelism may cut."""
