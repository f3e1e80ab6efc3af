"""Text sampled from a trained byte-level model."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.job.opening.open_recipe import BYTES
from stepladder.model import evaluating
from stepladder.plan import Recipe
from stepladder.train import Run

PROMPT = b"def "


def sample_text(run: Run, recipe: Recipe) -> str:
    """What the model makes of the prompt; nothing where it was not asked or cannot."""
    shape = getattr(run.module, "shape", None)
    # A stage of a pipeline is no whole model, and ranks of a context read parts of a row.
    whole = run.plan.layout.pipeline == run.plan.layout.context == 1
    if not recipe.train.sample or not whole or getattr(shape, "vocab", None) != BYTES:
        return ""
    drawn = sample_bytes(
        run.module, PROMPT, length=recipe.train.sample, window=recipe.model.sequence
    )
    return drawn.decode(errors="replace")


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
