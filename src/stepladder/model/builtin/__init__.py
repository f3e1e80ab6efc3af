"""The built-in models and their initial values."""
