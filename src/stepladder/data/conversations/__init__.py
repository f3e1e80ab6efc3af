"""Conversations and instructions to fine-tune on, from JSON lines."""
