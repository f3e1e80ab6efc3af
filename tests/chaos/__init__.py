"""Runs that are killed, stopped and cut off, and must end as if nobody had touched them."""
