"""Configuration files of DeepSpeed and Accelerate, read as plans."""
