"""A step's time by the operations that will run, each at the price that a device asks for it."""
