"""What the module is: its anatomy, its first values, and the built-in models."""

from .anatomy import Anatomy
from .attention import set_attention
from .build import build
from .find import find_anatomy
from .gpt import GPT
from .initialise import initialise
from .llama import Llama
from .mlp import MLP
from .resnet import ResNet
from .vit import ViT

__all__ = [
    "GPT",
    "MLP",
    "Anatomy",
    "Llama",
    "ResNet",
    "ViT",
    "build",
    "find_anatomy",
    "initialise",
    "set_attention",
]
