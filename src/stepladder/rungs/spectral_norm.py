"""Spectral norm under gradient accumulation: its power iteration advances once a batch.

In training every forward pass advances the estimate of the largest singular value. A batch in
micro-batches would advance it several times, and each micro-batch would compute with another
weight. So only the first one advances it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from stepladder.rungs.data_parallel.gradient_sync import Around
from stepladder.seam.modules import pre_hooks


def spectral_parts(module: nn.Module) -> list[nn.Module]:
    """Parts that advance a power iteration in training: parametrizations, and hooks of old."""
    return [
        part
        for part in module.modules()
        if type(part).__name__ == "_SpectralNorm"
        or any(isinstance(hook, SpectralNorm) for hook in pre_hooks(part))
    ]


def iterate_once(module: nn.Module, around: Around) -> Around:
    """The context of a micro-batch, in which only the first of a batch advances the iteration."""
    parts = spectral_parts(module)
    if not parts:
        return around
    first = [True]

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        modes = [part.training for part in parts]
        finished = False
        try:
            for part in () if first[0] else parts:
                part.training = False
            with around(last):
                yield
            finished = True
        finally:
            for part, training in zip(parts, modes):
                part.training = training
            first[0] = last or not finished

    return around_micro_batch
