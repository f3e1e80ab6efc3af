"""torch.compile, and our passes over the graphs it compiles."""
