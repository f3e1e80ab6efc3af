"""Our solutions, from which the starters are made: see `labs/text.py`."""
