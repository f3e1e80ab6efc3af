"""The way through the labs: units with a goal, reading, exercises and a graded checklist."""
