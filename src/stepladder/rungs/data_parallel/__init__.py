"""Data parallel, ranks that see different samples: DDP, ZeRO 1, 2 and 3."""
