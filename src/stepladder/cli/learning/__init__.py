"""The words of `stepladder lab` and `stepladder course`, one file each."""
