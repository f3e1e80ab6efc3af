"""What the module is: its anatomy, its cost, its first values; and the built-in models."""

from .anatomy import Anatomy
from .attention import Attention, document_mask, last_queries, set_attention
from .build import build
from .count import Flops, count_flops
from .cuts import carried
from .dear import is_dear
from .describe import describe, inputs_of
from .documents import read_documents, their_inputs
from .find import find_anatomy
from .gpt import GPT
from .huggingface import their_config, their_tensors
from .initialise import initialise
from .llama import Llama
from .lora import add_lora
from .mlp import MLP
from .noted import adapter_key, bare, noted, own_shape
from .operations import precision_table
from .own import build_own, names_own
from .pretrained import names_pretrained
from .resnet import ResNet
from .standin import blueprint, uncompiled
from .trace import CACHES
from .vit import ViT

__all__ = [
    "CACHES",
    "GPT",
    "MLP",
    "Anatomy",
    "Attention",
    "Flops",
    "Llama",
    "ResNet",
    "ViT",
    "adapter_key",
    "add_lora",
    "bare",
    "blueprint",
    "build",
    "build_own",
    "carried",
    "count_flops",
    "describe",
    "document_mask",
    "find_anatomy",
    "initialise",
    "inputs_of",
    "is_dear",
    "last_queries",
    "names_own",
    "names_pretrained",
    "noted",
    "own_shape",
    "precision_table",
    "read_documents",
    "set_attention",
    "their_config",
    "their_inputs",
    "their_tensors",
    "uncompiled",
]
