"""The first tensor in which a plan's run parts from one device's, in order of computing."""
