"""What a loop calls after a step or an evaluation: EMA, early stopping, the best checkpoint."""
