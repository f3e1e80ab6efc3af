"""Lessons: each file makes a claim, runs it small enough for a laptop, and checks the number."""
