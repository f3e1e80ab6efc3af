"""One forward pass on fake tensors, as the list of what was read and made, in order.

Tensors are numbered as they appear, and so are the storages that they lie in: views of one storage
change together. What passes into a part of the model and out of it is noted with its place among
the arguments or results, because a stage can hand over only what it meets there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError, StepladderError
from stepladder.model.tracing.fake_tensors import FakeForward
from stepladder.model.tracing.operation_recorder import tensors_in
from stepladder.model.tracing.trace_blocks import CACHES
from stepladder.seam.dispatch import (
    DispatchMode,
    operator_name,
    silent_fake_tensors,
    written_arguments,
)
from stepladder.seam.modules import tensors_of
from stepladder.seam.pytree import tree_map
from stepladder.seam.storages import storage_id

from .remote_activation import BY_SHAPE

REMEDY = "Use pipeline=1, and shard or tensor instead."


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A tensor that goes into one call of a part, or comes out of it."""

    part: str
    call: int  # how many times the part was called before in this pass
    side: Literal["in", "out"]
    leaf: int  # its place among all tensors of the arguments, or of the results


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What is known of a tensor in the results of a part."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Given:
    """In the results of a part, a tensor that it was given."""

    leaf: int  # its place among the tensors of the arguments


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; tensors by their numbers."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    writes: tuple[int, ...] = ()  # of what it reads, what it changes


@dataclass(frozen=True, slots=True)
class Passing:
    """A tensor at a port."""

    port: Port
    tensor: int


@dataclass(frozen=True, slots=True)
class Gate:
    """The first call of a block."""

    block: str


@dataclass(frozen=True, slots=True)
class Use:
    """A part outside the blocks runs, or its parameters are read."""

    part: str


Event = Operation | Passing | Gate | Use


@dataclass(slots=True)
class ForwardRecord:
    """What happened in one forward pass."""

    model: str
    events: list[Event] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)  # of each tensor
    inputs: set[int] = field(default_factory=set)  # storages of what the module was given
    parameters: dict[int, tuple[str, ...]] = field(default_factory=dict)  # storage: parts with it
    buffers: dict[int, list[str]] = field(default_factory=dict)  # storage: their names
    answer: tuple[int, ...] = ()  # the tensors that the module returned
    called: set[str] = field(default_factory=set)  # parts that were called themselves
    results: dict[tuple[str, int], Any] = field(default_factory=dict)  # a part's, by its call

    def gates(self) -> dict[str, int]:
        """Where in the list each block is called first, in that order."""
        return {e.block: i for i, e in enumerate(self.events) if isinstance(e, Gate)}

    def uses(self) -> dict[str, set[int]]:
        """For each part outside the blocks, how many blocks had been entered when it was used."""
        entered, found = 0, dict[str, set[int]]()
        for event in self.events:
            if isinstance(event, Gate):
                entered += 1
            elif isinstance(event, Use):
                found.setdefault(event.part, set()).add(entered)
        return found


def record_forward(
    module: nn.Module, blocks: Sequence[str], others: Sequence[str], inputs: Any
) -> ForwardRecord:
    """Run the module once without numbers.

    Args:
        blocks: each is called once, or several times in a row.
        others: further parts with parameters, none inside another or inside a block.
    """
    forward = FakeForward(module)
    with silent_fake_tensors(), forward.fake, torch.enable_grad():
        states, given = forward.states(), forward.to_fake(inputs)
        recorder = Recorder(type(module).__name__, blocks, others)
        recorder.own(module, states, given)
        with recorder.watching(module):
            try:
                with recorder:
                    answer = forward.run(given, states)
            except StepladderError:
                raise
            except Exception as error:
                raise untraceable(module, error) from error
        recorder.end(answer)
    return recorder.record


def untraceable(module: nn.Module, error: Exception) -> ModelError:
    return ModelError(
        "layout.pipeline",
        f"{type(module).__name__} cannot be traced, since its code depends on numbers "
        f"({type(error).__name__})",
        REMEDY,
    )


class Recorder(DispatchMode):
    """Writes down operations and calls of parts as they come."""

    def __init__(self, model: str, blocks: Sequence[str], others: Sequence[str]) -> None:
        super().__init__()
        self.record = ForwardRecord(model)
        self.blocks, self.others = blocks, others
        self.numbers: dict[int, int] = {}  # of tensors, by identity
        self.storages: dict[int, int] = {}  # by address
        self.kept: list[Tensor] = []  # alive, so that neither is given to another
        self.running: list[str] = []  # parts
        self.given: list[list[Tensor]] = []  # what each of them was
        self.calls: Counter[str] = Counter()
        self.latest = ""  # the block that was entered last

    def own(self, module: nn.Module, states: dict[str, Tensor], given: Any) -> None:
        """Know the tensors that are there before the pass."""
        fakes: dict[int, Tensor] = {}
        owners: dict[int, list[str]] = {}
        for name, tensor in named_tensors(module):  # a shared one under each of its names
            fakes.setdefault(id(tensor), states.get(name, tensor))
            where = self.record.storage[self.number(fakes[id(tensor)])]
            if part := next((p for p in (*self.blocks, *self.others) if within(p, name)), None):
                owners.setdefault(where, []).append(part)
            if not isinstance(tensor, nn.Parameter):
                self.record.buffers.setdefault(where, []).append(name)
        self.record.parameters = {key: tuple(dict.fromkeys(v)) for key, v in owners.items()}
        self.record.inputs = {self.record.storage[self.number(t)] for t in tensors_in(given)}

    def number(self, tensor: Tensor) -> int:
        if id(tensor) not in self.numbers:
            self.numbers[id(tensor)] = len(self.kept)
            self.kept.append(tensor)
            address = storage_id(tensor.untyped_storage())
            self.record.storage.append(self.storages.setdefault(address, len(self.storages)))
        return self.numbers[id(tensor)]

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = () if operator_name(op) in BY_SHAPE else tensors_in((args, kwargs))
        reads = tuple(self.number(tensor) for tensor in read)
        for number in reads:
            self.use_parameter(number)
        result = op(*args, **kwargs)
        written = tuple(self.number(t) for t in tensors_in(written_arguments(op, args, kwargs)))
        makes = tuple(self.number(tensor) for tensor in tensors_in(result))
        self.record.events.append(Operation(reads, makes, written))
        return result

    def use_parameter(self, number: int) -> None:
        owners = self.record.parameters.get(self.record.storage[number], ())
        inside = [part for part in owners if part in self.running]
        for part in inside or owners:
            if part in self.others:
                self.record.events.append(Use(part))
            elif part not in self.running:
                raise ModelError(
                    "layout.pipeline",
                    f"{self.record.model} reads parameters of '{part}' outside of it",
                    REMEDY,
                )

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        handles: list[Any] = []
        for name in (*self.blocks, *self.others):
            part = module.get_submodule(name)
            enter, leave = partial(self.enter, name), partial(self.leave, name)
            handles.append(part.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(part.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def enter(self, name: str, part: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        call = self.calls[name]
        self.calls[name] += 1
        self.record.called.add(name)
        self.given.append(tensors_given(args, kwargs))
        self.pass_by(Port(name, call, "in", 0), self.given[-1])
        if name in self.others:
            self.record.events.append(Use(name))
        elif call == 0:
            self.record.events.append(Gate(name))
            self.latest = name
        elif name != self.latest:
            raise ModelError(
                "layout.pipeline",
                f"block '{name}' of {self.record.model} runs again after '{self.latest}'",
                REMEDY,
            )
        self.running.append(name)

    def leave(self, name: str, part: nn.Module, args: Any, output: Any) -> None:
        self.running.remove(name)
        call = self.calls[name] - 1
        self.pass_by(Port(name, call, "out", 0), tensors_in(output))
        self.record.results[name, call] = described(output, self.given.pop())

    def pass_by(self, port: Port, tensors: Sequence[Tensor]) -> None:
        for leaf, tensor in enumerate(tensors):
            here = Port(port.part, port.call, port.side, leaf)
            self.record.events.append(Passing(here, self.number(tensor)))

    def end(self, answer: Any) -> None:
        parts = dict(answer) if isinstance(answer, dict) else {"": answer}
        kept = [value for name, value in parts.items() if name not in CACHES]
        self.record.answer = tuple(self.number(tensor) for tensor in tensors_in(kept))


def described(results: Any, given: Sequence[Tensor]) -> Any:
    """The results of a part: their containers, and what is known of each tensor."""
    places = {id(tensor): Given(leaf) for leaf, tensor in enumerate(given)}
    return tree_map(lambda value: places.get(id(value)) or shape_of(value), results)


def shape_of(value: Any) -> Any:
    return TensorShape(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value


def tensors_given(args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among a call's arguments; a cache's are left out, for every stage has its own."""
    return tensors_in((args, {name: v for name, v in kwargs.items() if name not in CACHES}))


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all their names, those of shared modules too."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name, tensor in tensors_of(part).items():
            if tensor is not None:
                yield f"{prefix}.{name}".lstrip("."), tensor


def within(part: str, name: str) -> bool:
    return f"{name}.".startswith(f"{part}.")
