"""The same bits on any number of ranks: gradients of fixed slices, added up in a fixed tree."""
