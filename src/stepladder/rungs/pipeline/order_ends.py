"""Which parts outside the blocks a pipeline's first stage holds, which its last, and which all.

The order in which parts are registered says little: OPT registers its final norm before its blocks.
So one forward pass on meta tensors shows what runs before the first block and what after the last.
A part that runs on both sides, or is read on both (an embedding that also makes the logits, a table
of relative positions for all blocks), is held by every stage, and the gradients that stages find
of it are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from stepladder.errors import ModelError
from stepladder.model import Anatomy

from .trace_chain import Link, trace_chain, with_parameters

BEFORE, BETWEEN, AFTER = "before", "between", "after"


@dataclass(slots=True)
class CallOrder:
    """On which side of the blocks each other part was called."""

    blocks: Sequence[str]
    side: str = BEFORE
    called: dict[str, set[str]] = field(default_factory=dict)  # a part's sides

    @contextmanager
    def recording(self, module: nn.Module, parts: Sequence[str]) -> Iterator[None]:
        first, last = (module.get_submodule(self.blocks[index]) for index in (0, -1))
        handles = [
            first.register_forward_pre_hook(partial(self.move, BETWEEN)),
            last.register_forward_hook(partial(self.move, AFTER)),
        ]
        for name in parts:
            for inner in module.get_submodule(name).modules():
                handles.append(inner.register_forward_pre_hook(partial(self.note, name)))
        self.side = BEFORE
        self.called.clear()  # of an attempt that failed
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def move(self, side: str, *_: Any) -> None:
        self.side = side

    def note(self, name: str, *_: Any) -> None:
        self.called.setdefault(name, set()).add(self.side)

    def order(self, anatomy: Anatomy) -> Anatomy:
        """The anatomy with each part at the end where it was called; one of both at neither."""
        sides = {
            **{name: {BEFORE} for name in anatomy.entry},
            **{name: {AFTER} for name in anatomy.exit},
            **self.called,
        }
        ends: dict[str, list[str]] = {BEFORE: [], AFTER: []}
        for name, found in sides.items():
            if len(found) == 1 and found <= ends.keys():
                ends[next(iter(found))].append(name)
        return replace(anatomy, entry=tuple(ends[BEFORE]), exit=tuple(ends[AFTER]))


def find_chain(
    module: nn.Module, anatomy: Anatomy, inputs: Any
) -> tuple[Anatomy, tuple[Link, ...]]:
    """How blocks follow each other, with as few parts on every stage as that takes."""
    try:
        return anatomy, trace_chain(module, anatomy, inputs)
    except ModelError:
        everywhere = shareable(module, anatomy)
        found = attempt(module, anatomy, inputs, everywhere)
        if found is None:
            raise
    for name in tuple(everywhere):
        fewer = [other for other in everywhere if other != name]
        if (enough := attempt(module, anatomy, inputs, fewer)) is not None:
            found, everywhere = enough, fewer
    return found


def attempt(
    module: nn.Module, anatomy: Anatomy, inputs: Any, everywhere: Sequence[str]
) -> tuple[Anatomy, tuple[Link, ...]] | None:
    """The chain with these parts on every stage; None where it still is none."""
    entry = tuple(name for name in anatomy.entry if name not in everywhere)
    exit = tuple(name for name in anatomy.exit if name not in everywhere)
    shared = replace(anatomy, entry=entry, exit=exit)
    if not everywhere:
        return None
    try:
        return shared, trace_chain(module, shared, inputs)
    except ModelError:
        return None


def shareable(module: nn.Module, anatomy: Anatomy) -> list[str]:
    """Parts that every stage may hold, the largest first; none as large as all blocks together."""
    most = sum(num_parameters(block) for _, block in anatomy.blocks_of(module))
    ends = with_parameters(module, (*anatomy.entry, *anatomy.exit))
    sizes = {name: num_parameters(module.get_submodule(name)) for name in ends}
    # Stages would draw different patterns for what is one pattern in the whole module.
    same = [name for name in ends if not drops(module.get_submodule(name))]
    return sorted((n for n in same if sizes[n] < most), key=lambda n: sizes[n], reverse=True)


def num_parameters(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def drops(part: nn.Module) -> bool:
    """Whether a part draws a pattern of dropout in training."""
    return any(
        "Drop" in type(one).__name__ and getattr(one, "p", 1.0) and one.training
        for one in part.modules()
    )
