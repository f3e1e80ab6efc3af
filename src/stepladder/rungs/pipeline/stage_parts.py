"""Which parts of a model are placed on stages: its blocks as they run, and others.

A model without a list of blocks is cut between its parts: the children of a Sequential, the layers
of a plain CNN, the two halves of an autoencoder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from stepladder.errors import ModelError
from stepladder.model import Anatomy
from stepladder.rungs.data_parallel.batch_norm import BATCH_NORMS

from .crossings import written_buffers
from .forward_record import REMEDY, ForwardRecord, record_forward

CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own


def find_parts(
    module: nn.Module, anatomy: Anatomy, num_stages: int, inputs: Any
) -> tuple[ForwardRecord, list[str], list[str]]:
    """One recorded pass, the blocks in the order they ran, and the other parts with parameters."""
    listed = bool(anatomy.blocks)
    opened: set[str] = set()  # parts that are taken apart
    writing: set[nn.Module] = set()  # without parameters, and their forward writes their buffers
    while True:
        blocks = list(anatomy.blocks) if listed else pieces(module, num_stages, opened)
        between = parts_between(module, "", blocks, opened, partial(has_state, writing=writing))
        others = [name for name in between if name not in blocks]
        record = record_forward(module, blocks, others, inputs)
        idle = [name for name in (*blocks, *others) if name not in record.called]
        if listed and (never := [name for name in idle if name in blocks]):
            problem = f"block '{never[0]}' of {record.model} never ran"
            raise ModelError("layout.pipeline", problem, REMEDY)
        # Of a part that is not called itself, code outside of it may call the children.
        further = {name for name in idle if is_divisible(module, name)}
        wrote = {module.get_submodule(name.rpartition(".")[0]) for name in written_buffers(record)}
        if wrote <= {module, *writing, *inside(module, (*blocks, *others))} and not further:
            ran = list(record.gates())
            return record, ran, [*others, *(name for name in blocks if name not in ran)]
        opened |= further
        writing |= wrote


def pieces(module: nn.Module, wanted: int, opened: set[str]) -> list[str]:
    """Parts with parameters, at least so many where there are; large ones are taken apart."""
    while True:
        found = list(parts_between(module, "", (), opened, has_parameters))
        divisible = [name for name in found if is_divisible(module, name)]
        if len(found) >= wanted or not divisible:
            return found
        opened.add(max(divisible, key=lambda name: num_parameters(module.get_submodule(name))))


def parts_between(
    module: nn.Module,
    prefix: str,
    blocks: Sequence[str],
    opened: Collection[str],
    counts: Callable[[nn.Module], bool],
) -> Iterator[str]:
    """Names of parts that count and hold no block."""
    for word, child in module.named_children():
        name = f"{prefix}.{word}".lstrip(".")
        inside = any(block.startswith(f"{name}.") for block in blocks)
        if inside or name in opened or isinstance(child, CONTAINERS):
            yield from parts_between(child, name, blocks, opened, counts)
        elif counts(child):
            yield name


def is_divisible(module: nn.Module, name: str) -> bool:
    return any(has_parameters(child) for child in module.get_submodule(name).children())


def has_parameters(part: nn.Module) -> bool:
    return next(part.parameters(), None) is not None


def inside(module: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    for name in names:
        yield from module.get_submodule(name).modules()


def has_state(part: nn.Module, writing: Collection[nn.Module]) -> bool:
    """Parameters, or what a forward pass changes: buffers that it was seen to write; statistics,
    which one row does not have; extra state."""
    return has_parameters(part) or any(
        one in writing
        or (isinstance(one, BATCH_NORMS) and one.track_running_stats)
        or type(one).get_extra_state is not nn.Module.get_extra_state
        for one in part.modules()
    )


def num_parameters(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def is_shareable(module: nn.Module, blocks: Sequence[str], name: str) -> bool:
    """Whether every stage may hold a part: it is smaller than the blocks, and draws no dropout."""
    most = sum(num_parameters(module.get_submodule(block)) for block in blocks)
    part = module.get_submodule(name)
    return num_parameters(part) < most and not drops(part)


def drops(part: nn.Module) -> bool:
    """Whether a part draws a pattern of dropout in training."""
    return any(
        "Drop" in type(one).__name__ and getattr(one, "p", 1.0) and one.training
        for one in part.modules()
    )
