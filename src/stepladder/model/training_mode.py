"""Training and evaluation mode of every submodule, changed for a while and restored exactly.

`module.eval()` followed by `module.train()` puts back into training what the user had put into
evaluation, such as a frozen BatchNorm. So flags are read and written submodule by submodule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A context in which every submodule is in evaluation mode."""
    with mode_restored(module):
        module.eval()
        yield


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """A context in which the module trains; submodules in evaluation stay so if it did before."""
    with mode_restored(module):
        if not module.training:
            module.train()
        yield


@contextmanager
def mode_restored(module: nn.Module) -> Iterator[None]:
    """A context after which every submodule is in the mode that it was in before."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def kept_in_evaluation(module: nn.Module) -> tuple[str, ...]:
    """Names of the submodules that evaluate while the module as a whole trains."""
    if not module.training:
        return ()
    return tuple(name for name, part in module.named_modules() if not part.training)


def start_training(module: nn.Module, evaluated: tuple[str, ...]) -> None:
    """Put the module into training, except for submodules whose user keeps them in evaluation."""
    module.train()
    parts = dict(module.named_modules())
    for name in evaluated:
        if name in parts:
            parts[name].training = False


def copy_mode(source: nn.Module, target: nn.Module) -> None:
    """Give every submodule of `target` the mode of the one of that name in `source`."""
    modes = {name: part.training for name, part in source.named_modules()}
    for name, part in target.named_modules():
        part.training = modes.get(name, source.training)
