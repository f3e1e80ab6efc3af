"""The built-in models and the initialisation of their parameters."""
