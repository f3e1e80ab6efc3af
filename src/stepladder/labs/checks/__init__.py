"""The hidden assertions, one file a lab: see `labs/verdict.py`."""
