"""Computing in fewer bits, and loss scaling."""
