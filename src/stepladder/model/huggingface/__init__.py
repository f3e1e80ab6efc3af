"""Hugging Face models and peft adapters: built, loaded and named as they are."""
