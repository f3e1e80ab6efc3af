"""The tables of `stepladder bench`: one device, several ranks, loss curves."""
