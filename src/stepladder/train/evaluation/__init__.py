"""Evaluation and prediction: data through a run's module, without learning from it."""
