"""A small mixture far from its first values, and batches for it."""

import torch

from stepladder.model import build

ROWS, LENGTH = 8, 8


def mixture(shape, **options):
    """Some experts have much to do and some nothing; the router's losses weigh much."""
    made = build(shape, **{"balance": 0.5, "z_loss": 0.1, **options})
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made


def batch(step):
    tokens = torch.randint(0, 32, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))
    return tokens, tokens.roll(-1, 1)
