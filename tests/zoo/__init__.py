"""The zoo of real architectures."""
