"""What `stepladder train` does with a recipe."""
