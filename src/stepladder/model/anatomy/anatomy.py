"""The anatomy of a model: what comes before its blocks, the blocks, what comes after, where to cut.

A model declares its anatomy as a property of that name; rungs read it and never ask for the
model's class. Names stay true when the module is split: a part set to None lives on another stage,
so a stage's blocks keep the names they have in the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from stepladder.errors import ModelError
from stepladder.seam.modules import children_of


@dataclass(frozen=True, slots=True)
class Anatomy:
    entry: tuple[str, ...] = ()  # dotted names of what runs before the blocks
    blocks: tuple[str, ...] = ()  # every block, in the order they run
    exit: tuple[str, ...] = ()  # what runs after them
    cuts: Mapping[str, str] = field(default_factory=dict, hash=False)  # in a block: column, row
    guessed: bool = False  # the cuts are read off names and shapes: to be tried before trusted
    head: str | None = None  # the linear that answers: vocabulary or classes
    embedding: str | None = None  # the table that reads tokens
    tied: bool = False  # head and embedding are one matrix

    def blocks_of(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Every block that lives in this module, with its name; on a stage, the stage's own."""
        if not self.blocks:
            raise ModelError(
                type(module).__name__,
                "has no list of blocks",
                f"Lists of blocks found: {lists_in(module)}. Give it an nn.ModuleList of like "
                "modules, or an `anatomy` that names them.",
            )
        found = [(name, part_of(module, name)) for name in self.blocks]
        return [(name, block) for name, block in found if block is not None]

    def part(self, module: nn.Module, name: str | None) -> nn.Module | None:
        """The part of that name; None where there is none, or it lives on another stage."""
        return None if name is None else part_of(module, name)


def part_of(module: nn.Module, name: str) -> nn.Module | None:
    """The part a dotted name leads to; None where it lives on another stage."""
    part: nn.Module | None = module
    for word in filter(None, name.split(".")):
        if part is None:
            return None
        if word not in children_of(part):
            raise ModelError(
                type(module).__name__,
                f"has no part named '{name}'",
                f"Lists of blocks found: {lists_in(module)}.",
            )
        part = children_of(part)[word]
    return part


def lists_in(module: nn.Module) -> str:
    names = [name for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    return ", ".join(names) or "none"
