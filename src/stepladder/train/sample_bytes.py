"""A little text from a trained byte model: the first thing a newcomer wants to see."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.model import evaluating


@torch.no_grad()
def sample_bytes(
    module: nn.Module,
    prompt: bytes,
    *,
    length: int,
    window: int,
    seed: int = 0,
    temperature: float = 0.7,
) -> bytes:
    """The prompt and `length` more bytes, each drawn from the model's own distribution."""
    device = next(module.parameters()).device
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same text on every device
    tokens = torch.tensor([list(prompt)], device=device)
    with evaluating(module):
        for _ in range(length):
            logits = module(tokens[:, -window:])[0, -1].float().cpu() / temperature
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, drawn[None].to(device)], dim=1)
    return bytes(tokens[0].tolist())
