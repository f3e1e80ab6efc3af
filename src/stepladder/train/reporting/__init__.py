"""What a step took and came to, as a report."""
