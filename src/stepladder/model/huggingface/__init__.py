"""Hugging Face models and peft adapters: building, loading, and names of tensors."""
