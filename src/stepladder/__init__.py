"""Stepladder takes any PyTorch model up the scaling ladder."""
