"""A compiled step, rehearsed: what the compiler keeps for backward, fuses away and frees."""
