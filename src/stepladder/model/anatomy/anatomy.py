"""The anatomy of a model: entry, blocks, exit, and the linears that tensor parallelism cuts.

A model declares its anatomy as a property of that name; rungs read it and never depend on the
model's class. Names stay valid when the module is split into pipeline stages: a part that is None
is on another stage, so a stage's blocks keep the names they have in the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from stepladder.errors import ModelError
from stepladder.seam.modules import children_of


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Dotted names of a model's parts."""

    entry: tuple[str, ...] = ()  # what runs before the blocks
    blocks: tuple[str, ...] = ()  # every block, in the order they run
    exit: tuple[str, ...] = ()  # what runs after them
    cuts: Mapping[str, str] = field(default_factory=dict, hash=False)  # in a block: column, row
    guessed: bool = False  # the cuts are inferred from names and shapes, and must be verified
    head: str | None = None  # the linear that makes the logits
    embedding: str | None = None  # the token embedding
    tied: bool = False  # head and embedding are one matrix

    def blocks_of(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Every block in this module with its name; on a pipeline stage, that stage's blocks."""
        if not self.blocks:
            raise ModelError(
                type(module).__name__,
                "has no list of blocks",
                f"Lists of blocks found: {module_lists(module)}. Give it an nn.ModuleList of like "
                "modules, or an `anatomy` that names them.",
            )
        found = [(name, find_part(module, name)) for name in self.blocks]
        return [(name, block) for name, block in found if block is not None]

    def part(self, module: nn.Module, name: str | None) -> nn.Module | None:
        """The part of that name; None if there is none, or it is on another stage."""
        return None if name is None else find_part(module, name)


def find_part(module: nn.Module, name: str) -> nn.Module | None:
    """The submodule of that dotted name; None if it is on another stage."""
    part: nn.Module | None = module
    for word in filter(None, name.split(".")):
        if part is None:
            return None
        if word not in children_of(part):
            raise ModelError(
                type(module).__name__,
                f"has no part named '{name}'",
                f"Lists of blocks found: {module_lists(module)}.",
            )
        part = children_of(part)[word]
    return part


def module_lists(module: nn.Module) -> str:
    names = [name for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    return ", ".join(names) or "none"
