"""A plan for known ranks, model and device: whether it is legal, and every question's answer."""
