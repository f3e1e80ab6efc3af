"""The time forecast: seconds of a step by cause."""
