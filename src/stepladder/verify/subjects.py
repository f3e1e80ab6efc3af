"""What a comparison trains: a module, its samples and its loss, made alike in every process.

A subject is a function and its name, not a module: each rank calls it for itself, because a module
that is cut, sliced or wrapped cannot be shared with the run it is compared to.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.data import IGNORED, Arrays
from stepladder.errors import ModelError, StepladderError
from stepladder.model import build

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

    def made(self) -> Made:
        """The module with its first weights, its samples and its loss: the same in any process.

        Dropout is turned off unless the same ranks draw again: it draws other numbers on every
        rank, as it should, so two runs that compute the same would still part.
        """
        torch.manual_seed(0)
        module, samples, loss = self.make()
        for part in module.modules():
            if isinstance(part, DROPOUT) and not self.dropout:
                part.p = 0.0
        return module, samples, loss


DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def find_subject(text: str, dropout: float = 0.0) -> Subject:
    """A model by name, shape or folder, or a user's function as `path.py:function`.

    Args:
        dropout: of a built-in model that has any.
    """
    path, colon, function = text.rpartition(":")
    if colon and path.endswith(".py"):
        existing(path)
        return Subject(text, partial(call_function, path, function))
    build(text, device="meta")  # a name nobody knows is a mistake to hear of now
    return Subject(text, partial(make_built_in, text, dropout))


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


def call_function(path: str, function: str) -> Made:
    """What the user's function returns: `module, samples` or `module, samples, loss`."""
    where = f"{path}:{function}"
    found = getattr(load_file(path), function, None)
    if not callable(found):
        raise ModelError("model", f"{path} has no function '{function}'", "Name one it has.")
    made = found()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise ModelError(
            "model",
            f"{where} returned {type(made).__name__}, not a module and its samples",
            "Return module, samples; or module, samples, loss where the module holds none.",
        )
    return (*made, None)[:3]


def existing(path: str) -> None:
    if not Path(path).is_file():
        raise ModelError("model", f"there is no file {path}", "Write path.py:function.")


def load_file(path: str) -> Any:
    """The Python file as a module, or in one line why not."""
    existing(path)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except StepladderError:
        raise
    except Exception as broken:
        raise ModelError(
            "model", f"{path} cannot be imported ({type(broken).__name__}: {broken})", "Mend it."
        ) from broken
    return module
