"""Random training problems compared with a plain torch loop: `python -m tests.fuzz`."""
