"""The Triton programs behind the operators, and those that benchmarks compare; imported only where
Triton runs."""
