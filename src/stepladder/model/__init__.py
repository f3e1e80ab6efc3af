"""What the module is: its anatomy, and the built-in models."""

from .anatomy import Anatomy
from .attention import set_attention
from .find import find_anatomy
from .gpt import GPT
from .llama import Llama

__all__ = ["GPT", "Anatomy", "Llama", "find_anatomy", "set_attention"]
