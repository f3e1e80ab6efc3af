"""One stage of a pipeline: the module's own forward, entered and left where the stage's blocks are.

Every rank has the whole micro-batch, so every stage runs the forward that the module's author
wrote, including the code that makes masks and positions. Only the parts of other stages are
replaced: earlier blocks return what was received, embeddings return zeros of the right shape that
nobody reads, and the first block of the next stage ends the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.model import Anatomy, meta_copy
from stepladder.model.call_module import call
from stepladder.seam.modules import children_of, names_in, shallow_copy

from .find_stages import Stages
from .remote_part import RemoteTensor, zeros_as_output
from .trace_chain import Link, with_parameters


class StageEnd(BaseException):
    """Carries what flows out of a forward pass. Not an Exception: no author means to catch it."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class ReceivedInput:
    """Where what was received waits for the stage's first block."""

    hidden: Tensor | None = None


class RemotePart(nn.Module):
    """In place of a part that lives on another stage.

    It passes for one of the part's class and answers to its plain attributes, and by a drawing of
    the part to questions about its layers, their shapes and types.
    """

    def __init__(
        self, name: str, part: nn.Module, answer: Callable[..., Any], drawn: nn.Module
    ) -> None:
        super().__init__()
        own = vars(part)
        self.__dict__["_drawn"] = drawn  # not a part: nothing of it is trained or moved
        self._held = {*names_in(part), *dir(type(part))} - {*dir(nn.Module)}
        self._part, self._answer = name, answer
        for word, value in own.items():
            plain = not word.startswith("_") and word not in ("training", "forward")
            if plain and not isinstance(value, Tensor):
                self.__dict__[word] = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer(args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what `isinstance` asks for
        drawn = self.__dict__.get("_drawn")
        return RemotePart if drawn is None else type(drawn)

    def __getattr__(self, word: str) -> Any:
        if word in self.__dict__.get("_held", ()):
            what = f"'{word}' of '{self._part}'"
            value = getattr(self._drawn, word)
            return RemoteTensor(what, value) if isinstance(value, Tensor | nn.Module) else value
        return super().__getattr__(word)


class StageModule(nn.Module):
    """The part of a model that one stage runs.

    Called with what the stage before it sent, it returns what the next is sent; `run` decides in
    which precision, and makes a loss of the last one's outputs.
    """

    def __init__(
        self, index: int, view: nn.Module, gate: ReceivedInput, anatomy: Anatomy, blocks: list[str]
    ) -> None:
        super().__init__()
        self.index, self.view, self.gate = index, view, gate
        self.anatomy = anatomy
        self.blocks = [(name, view.get_submodule(name)) for name in blocks]
        self.part: Batch | None = None  # the micro-batch whose turn it is
        self.run: Callable[[StageModule], Tensor] | None = None

    def forward(self, *received: Tensor) -> Tensor:
        assert self.run is not None
        self.gate.hidden = received[0] if received else None
        try:
            return self.run(self)
        finally:
            self.gate.hidden = None

    def carry(self, inputs: Any) -> Tensor:
        """Run up to the next stage's first block; what it would be given."""
        try:
            call(self.view, inputs)
        except StageEnd as end_of_stage:
            return end_of_stage.hidden.contiguous()
        name = type(self.view).__name__
        raise ModelError(
            "layout.pipeline",
            f"{name} ended its forward pass before block {len(self.blocks)} of stage {self.index}",
            "Use pipeline=1.",
        )


def keep_own(module: nn.Module, anatomy: Anatomy, stages: Stages) -> list[StageModule]:
    """Leave in the module only what this rank's stages hold; those stages, ready to run."""
    chunks = [make_stage_module(module, anatomy, stages, stage) for stage in stages.own]
    held = [anatomy.blocks[index] for stage in stages.own for index in stages.chunks[stage]]
    for name in anatomy.blocks:
        if name not in held:
            drop(module, name)
    for names, stage in ((anatomy.entry, 0), (anatomy.exit, stages.last)):
        if stage not in stages.own:
            for name in with_parameters(module, names):
                drop(module, name)
    return chunks


def drop(module: nn.Module, name: str) -> None:
    parent, _, word = name.rpartition(".")
    children_of(module.get_submodule(parent))[word] = None


def make_stage_module(
    module: nn.Module, anatomy: Anatomy, stages: Stages, stage: int
) -> StageModule:
    gate, blocks = ReceivedInput(), stages.chunks[stage]
    others: dict[str, nn.Module | None] = {}
    for index, name in enumerate(anatomy.blocks):
        part, link = module.get_submodule(name), stages.links[index]
        if index < blocks.start:
            writes = stages.links[blocks.start].writes
            answer = received(gate, link, writes)
            others[name] = RemotePart(name, part, answer, meta_copy(part))
        elif index >= blocks.stop:
            others[name] = RemotePart(name, part, end_of_stage(link), meta_copy(part))
    if stage != 0:
        for name in with_parameters(module, anatomy.entry):
            part = module.get_submodule(name)
            drawn = meta_copy(part).eval()
            answer = zeros_as_output(drawn, partial(flowing, gate))
            others[name] = RemotePart(name, part, answer, drawn)
    if stage != stages.last:
        others.update(dict.fromkeys(with_parameters(module, anatomy.exit)))
    own = [anatomy.blocks[index] for index in blocks]
    return StageModule(stage, with_parts(module, others), gate, anatomy, own)


def with_parts(module: nn.Module, parts: Mapping[str, nn.Module | None]) -> nn.Module:
    """A copy of the module with some parts replaced; all others are the very same ones.

    Modules on the way to a replaced part are copied too, but share the parameters they hold.
    """
    same = shallow_copy(module)
    for word, child in children_of(module).items():
        inside = {
            n.removeprefix(f"{word}."): p for n, p in parts.items() if n.startswith(f"{word}.")
        }
        if word in parts:
            children_of(same)[word] = parts[word]
        elif inside and child is not None:
            children_of(same)[word] = with_parts(child, inside)
    return same


def received(gate: ReceivedInput, link: Link, writes: bool) -> Callable[..., Any]:
    """The answer of a block that ran on an earlier stage, in the form that block gives it.

    Args:
        writes: whether the block that takes it writes to it, as none may to what was received.
    """

    def answer(args: Any, kwargs: Any) -> Any:
        assert gate.hidden is not None
        hidden = gate.hidden.clone() if writes else gate.hidden
        return (hidden, *[None] * (link.returned - 1)) if link.returned else hidden

    return answer


def flowing(gate: ReceivedInput) -> Tensor:
    assert gate.hidden is not None
    return gate.hidden


def end_of_stage(link: Link) -> Callable[..., Any]:
    def answer(args: Any, kwargs: Any) -> None:
        taken = args[link.argument] if isinstance(link.argument, int) else kwargs[link.argument]
        raise StageEnd(taken)

    return answer
