"""Loss curves of short trainings, side by side."""
