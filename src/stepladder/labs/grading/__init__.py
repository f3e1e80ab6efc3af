"""A learner's file against a lab's checks, in a process of its own."""
