"""The fused update of Adam, and the formats of its state in fewer bytes."""
