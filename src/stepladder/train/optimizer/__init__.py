"""The optimizer: built from a plan, its state, master weights, the gradient norm."""
