"""One stage of a pipeline: the module's own forward, with the parts of other stages stood in for.

Every rank has the whole micro-batch, so every stage runs the forward that the module's author
wrote, including the code that makes masks and positions. Parts of earlier stages answer with
tensors without numbers; what was received takes their place where this stage begins, and the first
block of the next stage ends the forward (stage_passage.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.model import Anatomy
from stepladder.model.call_module import call
from stepladder.seam.modules import children_of, shallow_copy

from .crossings import EVERYWHERE
from .find_stages import Stages
from .remote_part import RemotePart
from .stage_passage import Passage, StageEnd, WatchedPart, find_ports


class StageModule(nn.Module):
    """The part of a model that one stage runs.

    Called with what the stage before it sent, it returns what the next is sent; `run` decides in
    which precision, and makes a loss of the last one's outputs.
    """

    def __init__(
        self,
        index: int,
        view: nn.Module,
        passage: Passage,
        blocks: list[tuple[str, nn.Module]],
        anatomy: Anatomy,
    ) -> None:
        super().__init__()
        self.index, self.view, self.passage = index, view, passage
        self.blocks, self.anatomy = blocks, anatomy
        self.part: Batch | None = None  # the micro-batch whose turn it is
        self.run: Callable[[StageModule], Any] | None = None

    def forward(self, *received: Tensor) -> Any:
        assert self.run is not None
        self.passage.begin(received)
        try:
            return self.run(self)
        finally:
            self.passage.begin(())

    def carry(self, inputs: Any) -> tuple[Tensor, ...]:
        """Run up to the next stage's first block; what the next stage needs."""
        try:
            call(self.view, inputs)
        except StageEnd:
            return self.passage.sent()
        name = type(self.view).__name__
        raise ModelError(
            "layout.pipeline",
            f"{name} ended its forward pass before block '{self.passage.ports.last}'",
            "Use pipeline=1.",
        )


def keep_own(module: nn.Module, anatomy: Anatomy, stages: Stages) -> list[StageModule]:
    """Leave in the module only what this rank's stages hold; those stages, ready to run."""
    chunks = [make_stage_module(module, anatomy, stages, stage) for stage in stages.own]
    names = [
        name
        for part in (*stages.blocks, *stages.homes)
        if stages.of_part(part) not in (*stages.own, EVERYWHERE)
        for name in stages.names[part]
    ]
    for name in names:
        drop(module, name)
    return chunks


def drop(module: nn.Module, name: str) -> None:
    parent, _, word = name.rpartition(".")
    children_of(module.get_submodule(parent))[word] = None


def make_stage_module(
    module: nn.Module, anatomy: Anatomy, stages: Stages, stage: int
) -> StageModule:
    passage = Passage(find_ports(stages, stage))
    others: dict[str, nn.Module | None] = {}
    for name in (*stages.blocks, *stages.homes):
        part = module.get_submodule(name)
        if stages.of_part(name) not in (stage, EVERYWHERE):
            stand_in: nn.Module = RemotePart(name, part, passage, stages.results)
        elif name in passage.ports.watched:
            stand_in = WatchedPart(name, part, passage)
        else:
            continue
        others.update(dict.fromkeys(stages.names[name], stand_in))
    own = [stages.blocks[index] for index in stages.chunks[stage]]
    blocks = [(name, module.get_submodule(name)) for name in own]
    return StageModule(stage, with_parts(module, others), passage, blocks, anatomy)


def with_parts(module: nn.Module, parts: Mapping[str, nn.Module | None]) -> nn.Module:
    """A copy of the module with some parts replaced; all others are the very same ones.

    Modules on the way to a replaced part are copied too, but share the parameters they hold.
    """
    same = shallow_copy(module)
    if isinstance(same, nn.TransformerEncoder):  # in evaluation it would look at the padding
        same.use_nested_tensor = False
    for word, child in children_of(module).items():
        inside = {
            n.removeprefix(f"{word}."): p for n, p in parts.items() if n.startswith(f"{word}.")
        }
        if word in parts:
            children_of(same)[word] = parts[word]
        elif inside and child is not None:
            children_of(same)[word] = with_parts(child, inside)
    return same
