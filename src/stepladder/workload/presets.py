"""Presets: shapes of well-known models by name, each as its model card states it."""

from __future__ import annotations

from stepladder.errors import PlanError, nearest

from .shape import Shape, parse_shape

PRESETS: dict[str, Shape] = {
    # family, layers, hidden, heads, kv_heads, ffn, vocab, sequence, tied
    "gpt-tiny": Shape("gpt", 4, 128, 4, 4, 512, 256, 256, True),
    "gpt-small": Shape("gpt", 6, 384, 6, 6, 1536, 256, 512, True),
    "gpt2": Shape("gpt", 12, 768, 12, 12, 3072, 50304, 1024, True),
    "gpt2-medium": Shape("gpt", 24, 1024, 16, 16, 4096, 50304, 1024, True),
    "gpt2-large": Shape("gpt", 36, 1280, 20, 20, 5120, 50304, 1024, True),
    "gpt2-xl": Shape("gpt", 48, 1600, 25, 25, 6400, 50304, 1024, True),
    "gpt3-13b": Shape("gpt", 40, 5120, 40, 40, 20480, 50304, 2048, True),
    "gpt3-175b": Shape("gpt", 96, 12288, 96, 96, 49152, 50304, 2048, True),
    "llama-tiny": Shape("llama", 4, 128, 4, 2, 384, 256, 256),
    "llama-small": Shape("llama", 6, 384, 6, 2, 1024, 256, 512),
    "llama2-7b": Shape("llama", 32, 4096, 32, 32, 11008, 32000, 4096),
    "llama2-13b": Shape("llama", 40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": Shape("llama", 80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": Shape("llama", 32, 4096, 32, 8, 14336, 128256, 8192),
    "llama3-70b": Shape("llama", 80, 8192, 64, 8, 28672, 128256, 8192),
    "llama3-405b": Shape("llama", 126, 16384, 128, 8, 53248, 128256, 8192),
    "llama3.2-1b": Shape("llama", 16, 2048, 32, 8, 8192, 128256, 8192, True),
    "llama3.2-3b": Shape("llama", 28, 3072, 24, 8, 8192, 128256, 8192, True),
    "mistral-7b": Shape("llama", 32, 4096, 32, 8, 14336, 32000, 8192),
    "mixtral-tiny": Shape("llama", 4, 128, 4, 2, 128, 256, 256, experts=8, active=2),
    "olmoe-tiny": Shape(
        "llama", 4, 128, 4, 4, 64, 256, 256, experts=16, active=4, raw=1, extra=256
    ),
    "qwen3-moe-tiny": Shape(
        "llama", 4, 128, 4, 2, 384, 256, 256,
        head=64, experts=16, active=4, expert_ffn=64, shared_ffn=64, extra=128,
    ),
    "mixtral-8x7b": Shape("llama", 32, 4096, 32, 8, 14336, 32000, 32768, experts=8, active=2),
    "mixtral-8x22b": Shape("llama", 56, 6144, 48, 8, 16384, 32000, 65536, experts=8, active=2),
    "olmoe-1b-7b": Shape(
        "llama", 16, 2048, 16, 16, 1024, 50304, 4096, experts=64, active=8, raw=1, extra=4096
    ),
    "qwen3-30b-a3b": Shape(
        "llama", 48, 2048, 32, 4, 6144, 151936, 40960,
        head=128, experts=128, active=8, expert_ffn=768, extra=256,
    ),
    "qwen3-235b-a22b": Shape(
        "llama", 94, 4096, 64, 4, 12288, 151936, 40960,
        head=128, experts=128, active=8, expert_ffn=1536, extra=256,
    ),
}  # fmt: skip


def find_shape(text: str) -> Shape:
    """The shape a preset or a shape text names."""
    if text in PRESETS:
        return PRESETS[text]
    if ":" in text:
        return parse_shape(text)
    raise PlanError("model", f"'{text}' is not a known model", nearest(text, PRESETS))
