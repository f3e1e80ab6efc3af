"""The parts of a model: before its blocks, the blocks, after them, and where to cut."""
