"""What a module computes, keeps and moves, read off a forward pass on fake tensors."""
