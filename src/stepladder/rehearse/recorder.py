"""What is allocated and freed, in the order in which it happens, on fake tensors.

The storage is the unit. A dispatch mode sees each one when an operation first returns it, a weak
reference sees it go, and storages that are resized (FSDP2 gathers into such) end and begin again.
Every birth and death is written down with the moment at which it happened: the phase of the step
and the module at work. Whose bytes they were is asked at the end, when it is known who outlived
what.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, in_backward, wraps_tensors
from stepladder.seam.operators import Operators
from stepladder.seam.storages import plain_tensors, resize_noticed, storage_id

COLLECTIVES = ("_c10d_functional", "c10d", "fsdp")
CASTS = Operators(("aten._to_copy.default",))
BUILDING, FORWARD, BACKWARD, UPDATE = "building", "forward", "backward", "optimizer step"


@dataclass(slots=True, eq=False)
class Allocation:
    """One storage from its birth to its death."""

    num_bytes: int
    phase: str  # at its birth
    module: str  # at work at its birth
    shape: tuple[int, ...] = ()
    owner: str = ""  # as claimed; empty: inferred from its lifetime
    recorded: bool = False  # whether autograd recorded at its birth
    passing: bool = False  # whether a collective made it
    outlived: bool = False  # the forward pass that it was born in
    watch: weakref.ref[Any] | None = None


class Event(NamedTuple):
    """A birth or a death."""

    allocation: Allocation
    born: bool
    phase: str
    module: str


@dataclass(eq=False)
class Recorder(DispatchMode):
    """Writes down every birth and death of a storage on one kind of device while it is active."""

    among_compiled = False

    device_type: str
    scratch: Callable[[Any, Any, Any], int] = lambda op, args, made: 0  # that a kernel needs
    keeps: Callable[[Any], int] = lambda op: 0  # that a library keeps from its first call on
    events: list[Event] = field(default_factory=list)
    phase: str = BUILDING
    modules: list[str] = field(default_factory=lambda: [""])  # the last one is at work
    alive: dict[int, Allocation] = field(default_factory=dict)
    was_backward: bool = False

    def __enter__(self) -> Recorder:
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = resize_noticed(self._resize, self.resize)  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for one in self.alive.values():
            one.watch = None  # what goes from here on is no part of the step

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented  # the operation comes back on the plain tensors inside
        self.follow_phase()
        result = op(*args, **(kwargs or {}))
        passing = op.namespace in COLLECTIVES
        cast = op in CASTS and self.owner_of(args[0]) == "parameters"
        for tensor in plain_tensors(result):
            made = self.note(tensor)
            if made is not None and not made.owner:
                made.passing = made.passing or passing
                made.owner = "working" if cast else made.owner
        if kept := self.keeps(op):
            self.stand(kept)
        if needed := self.scratch(op, args, result):
            self.pass_through(needed)
        return result

    def follow_phase(self) -> None:
        """Enter the backward pass with the first operation of one, and leave it with the last."""
        backward = in_backward()
        if backward and not self.was_backward:
            self.phase, self.modules = BACKWARD, [""]
            for one in self.alive.values():
                one.outlived = True
        elif self.was_backward and not backward:
            self.phase, self.modules = FORWARD, [""]
        self.was_backward = backward

    def note(self, tensor: Tensor) -> Allocation | None:
        """The storage of a tensor, born now if it is new; none on another device."""
        if tensor.device.type != self.device_type or tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()
        known = self.alive.get(storage_id(storage))
        return known or self.begin(storage, tuple(tensor.shape))

    def begin(self, storage: torch.UntypedStorage, shape: tuple[int, ...] = ()) -> Allocation:
        made = Allocation(storage.nbytes(), self.phase, self.modules[-1], shape)
        made.recorded = torch.is_grad_enabled()
        where = storage_id(storage)
        made.watch = weakref.ref(storage, partial(self.bury, where))
        self.alive[where] = made
        self.events.append(Event(made, True, self.phase, self.modules[-1]))
        return made

    def bury(self, where: int, watch: Any) -> None:
        one = self.alive.get(where)
        if one is not None and one.watch is watch:
            self.end(where)

    def end(self, where: int) -> Allocation:
        one = self.alive.pop(where)
        one.watch = None
        self.events.append(Event(one, False, self.phase, self.modules[-1]))
        return one

    def pass_through(self, num_bytes: int) -> None:
        """Write down what a kernel allocates and frees while it runs."""
        made = Allocation(num_bytes, self.phase, self.modules[-1], owner="temporary")
        for born in (True, False):
            self.events.append(Event(made, born, self.phase, self.modules[-1]))

    def stand(self, num_bytes: int) -> None:
        """Write down what is allocated once and never freed."""
        made = Allocation(num_bytes, self.phase, "", owner="temporary")
        self.events.append(Event(made, True, self.phase, ""))

    def resize(self, storage: torch.UntypedStorage, before: int) -> None:
        """End a storage's life and begin another in its new size, with the same owner."""
        where = storage_id(storage)
        if where not in self.alive:
            return  # on another device, or never seen with a tensor
        old = self.end(where)
        made = self.begin(storage, old.shape)
        made.owner, made.passing = old.owner, old.passing

    def claim(self, tensors: Iterable[Any], owner: str) -> None:
        """Write down who owns the storages of these tensors."""
        for tensor in plain_tensors(list(tensors)):
            made = self.note(tensor)
            if made is not None and made.num_bytes:
                made.owner = owner

    def final_events(self) -> list[Event]:
        """Every birth and death, in order."""
        return self.events

    def owner_of(self, tensor: Any) -> str:
        if not isinstance(tensor, Tensor) or wraps_tensors(type(tensor)):
            return ""
        one = self.alive.get(storage_id(tensor.untyped_storage()))
        return one.owner if one else ""


def owner_in_the_end(one: Allocation) -> str:
    """Who held a storage, once the step is over."""
    if one.owner:
        return one.owner
    if one.passing:
        return "communication"
    kept = one.recorded and (one.phase == BACKWARD or one.outlived)
    return "activations" if kept and one.phase in (FORWARD, BACKWARD) else "temporary"
