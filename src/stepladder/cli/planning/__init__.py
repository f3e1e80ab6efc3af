"""Parts of `stepladder plan` that need more than the planner."""
