"""What the module is: its anatomy, its cost, its first values; and the built-in models."""

from .anatomy import Anatomy
from .attention import Attention, document_mask, last_queries, set_attention
from .build import build
from .count import Flops, count_flops
from .dear import is_dear
from .describe import describe
from .find import find_anatomy
from .gpt import GPT
from .initialise import initialise
from .llama import Llama
from .mlp import MLP
from .operations import precision_table
from .resnet import ResNet
from .standin import blueprint, uncompiled
from .vit import ViT

__all__ = [
    "GPT",
    "MLP",
    "Anatomy",
    "Attention",
    "Flops",
    "Llama",
    "ResNet",
    "ViT",
    "blueprint",
    "build",
    "count_flops",
    "describe",
    "document_mask",
    "find_anatomy",
    "initialise",
    "is_dear",
    "last_queries",
    "precision_table",
    "set_attention",
    "uncompiled",
]
