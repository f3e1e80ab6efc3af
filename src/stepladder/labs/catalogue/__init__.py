"""Which labs there are, course by course."""
