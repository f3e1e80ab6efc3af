"""What a forward pass changes in a module besides its result: buffers and plain attributes.

BatchNorm updates running statistics, spectral norm iterates its vectors, user code counts calls or
keeps an auxiliary loss. A forward pass that does not count, such as a trial or a recomputation,
runs on the state that it should see and leaves the module's own state as it was. Buffers are
replaced and not written to, because autograd may have saved them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stepladder.seam.modules import buffers_of, module_attributes
from stepladder.seam.storages import version_of

LARGE_BYTES = 2**20  # buffers above this are copied only in parts that change them
PLAIN = (bool, int, float, complex, str, type(None), Tensor, tuple)
CONTAINERS = (list, dict, set, deque)


@dataclass(slots=True)
class PartState:
    """One submodule's own buffers and attributes."""

    part: nn.Module
    buffers: dict[str, Tensor | None]
    attributes: dict[str, Any]


State = list[PartState]


def read_state(module: nn.Module, *, large: bool = True) -> State:
    """A copy of everything that a forward pass may change.

    Args:
        large: copy large buffers too; else they are only referred to.
    """
    return [
        PartState(
            part,
            {name: copied(buffer, large) for name, buffer in buffers_of(part).items()},
            attributes(part),
        )
        for part in module.modules()
    ]


def copied(buffer: Tensor | None, large: bool) -> Tensor | None:
    if buffer is None or (not large and buffer.nbytes > LARGE_BYTES):
        return buffer
    return buffer.detach().clone()


def attributes(part: nn.Module) -> dict[str, Any]:
    return {
        name: duplicate(value)
        for name, value in module_attributes(part).items()
        if isinstance(value, (*PLAIN, *CONTAINERS))
    }


def duplicate(value: Any) -> Any:
    """A copy of a container, with the attributes of its own class; a frozen one stays itself."""
    try:
        return copy(value) if isinstance(value, CONTAINERS) else value
    except Exception:  # diffusers' frozen settings take no items, a copy's neither
        return value


def versions_of_large(module: nn.Module) -> list[tuple[int, int]]:
    """The large buffers and how often each was written to."""
    return [(id(b), version_of(b)) for b in module.buffers() if b.nbytes > LARGE_BYTES]


@contextmanager
def running_on(state: State) -> Iterator[None]:
    """A context in which the submodules have copies of that state; theirs is back afterwards."""
    now = [
        (s.part, dict(buffers_of(s.part)), {n: vars(s.part).get(n) for n in attributes(s.part)})
        for s in state
    ]
    try:
        for each in state:
            buffers_of(each.part).update(
                {
                    name: copied(buffer, large=buffer is not buffers_of(each.part).get(name))
                    for name, buffer in each.buffers.items()
                }
            )
            for name, value in each.attributes.items():
                vars(each.part)[name] = duplicate(value)
        yield
    finally:
        for part, buffers, values in now:
            buffers_of(part).clear()
            buffers_of(part).update(buffers)
            vars(part).update(values)


@contextmanager
def state_restored(module: nn.Module) -> Iterator[None]:
    """A context whose forward passes leave buffers and attributes as they were."""
    before = [(part, set(vars(part))) for part in module.modules()]
    try:
        with running_on(read_state(module)):
            yield
    finally:
        for part, names in before:
            for name in vars(part).keys() - names:
                del vars(part)[name]
