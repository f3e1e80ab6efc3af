"""What is settled before the first step: the plan for the ranks, the folder, model and data."""
