"""The models, their anatomy and their cost."""
