"""Coordination of ranks: agreement on code and plan, notes, hang detection, time spent waiting."""
