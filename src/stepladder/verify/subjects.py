"""What a comparison trains: a module, its samples and its loss, made alike in every process.

A subject is a function and its name, not a module: each rank calls it for itself, because a module
that is cut, sliced or wrapped cannot be shared with the run it is compared to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from stepladder.data import IGNORED, Arrays
from stepladder.model import build
from stepladder.train.user_code.user_code import UserCode
from stepladder.train.user_code.user_model import build_user_model, model_reference

ROWS = 192  # samples: more than any comparison of a few steps reads
LENGTH = 16  # tokens of a sample
SAMPLES = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # one sample's shape
IMAGE = (3, 224, 224)  # of every other model that reads no tokens

Made = tuple[nn.Module, Any, Any]  # a module, its samples, its loss


@dataclass(frozen=True, slots=True)
class Subject:
    """A function that makes a module, its samples and its loss, and its name."""

    name: str
    make: Callable[[], Made]
    dropout: bool = False  # left on
    taken: str = ""  # what of the user's code was used without being named
    named: Mapping[str, Any] = field(default_factory=dict)  # texts it can be made from again

    def made(self) -> Made:
        """The module with its first weights, its samples and its loss: the same in any process.

        Dropout is turned off unless the same ranks draw again: it draws other numbers on every
        rank, as it should, so two runs that compute the same would still part.
        """
        torch.manual_seed(0)
        module, samples, loss = self.make()
        for part in module.modules() if not self.dropout else ():
            if isinstance(part, DROPOUT):
                part.p = 0.0
            elif isinstance(part, nn.MultiheadAttention | nn.RNNBase):
                part.dropout = 0.0
        return module, samples, loss


DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def find_subject(code: UserCode | str, dropout: float = 0.0, samples: Any = None) -> Subject:
    """A model by name, shape or folder, or the user's own code.

    Args:
        dropout: of a built-in model that has any.
        samples: instead of those that were named.
    """
    named = UserCode(code) if isinstance(code, str) else code
    if model_reference(named.model) is None:
        build(named.model, device="meta")  # a name nobody knows is a mistake to hear of now
    complete = named.complete()
    make = partial(make_named, complete.absolute(), dropout, samples)
    texts = {"model": named.model, "sample": named.sample, "data": named.data, "loss": named.loss}
    return Subject(named.model, make, taken=complete.taken, named=texts if samples is None else {})


def make_named(code: UserCode, dropout: float, samples: Any) -> Made:
    """The module, samples and loss that were named; those of a built-in model for the rest."""
    own: Any = code.training_samples() if samples is None else samples
    if reference := model_reference(code.model):
        module = build_user_model(reference)
    else:
        module, rows, _ = make_built_in(code.model, dropout)
        own = rows if own is None else own
    return module, own, code.read_loss(own)


def make_built_in(name: str, dropout: float = 0.0) -> Made:
    drawn = build(name, device="meta")
    shape, config = getattr(drawn, "shape", None), getattr(drawn, "config", None)
    draw = torch.Generator().manual_seed(1)
    if vocab := getattr(config, "vocab_size", None):
        return build(name), Arrays(*ragged_tokens(vocab, LENGTH, draw)), "cross_entropy"
    if shape is None:
        samples = torch.randn(ROWS, *image_of(name, config), generator=draw)
        classes = torch.randint(0, getattr(config, "num_labels", 10), (ROWS,), generator=draw)
        return build(name), Arrays(samples, classes), "cross_entropy"
    length = min(LENGTH, shape.sequence)
    tokens = ragged_tokens(shape.vocab, length, draw)
    share = dropout if shape.family == "gpt" else 0.0  # the others have none
    return build(name, sequence=length, dropout=share), Arrays(*tokens), "cross_entropy"


def image_of(name: str, config: Any) -> tuple[int, ...]:
    """One sample's shape, for a model that reads no tokens."""
    channels, side = getattr(config, "num_channels", None), getattr(config, "image_size", 224)
    return SAMPLES.get(name, IMAGE) if channels is None else (channels, side, side)


def ragged_tokens(
    vocab: int, length: int, draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of which rows have very different numbers: where ranks are weighed wrongly
    it shows."""
    tokens = torch.randint(0, vocab, (ROWS, length), generator=draw)
    targets = torch.randint(0, vocab, (ROWS, length), generator=draw)
    valid = torch.randint(1, length + 1, (ROWS, 1), generator=draw)
    targets[torch.arange(length).expand(ROWS, -1) >= valid] = IGNORED
    return tokens, targets
