"""The Triton programs behind the operators; imported only where Triton runs."""
