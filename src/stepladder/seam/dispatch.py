"""Watching operations as they are dispatched: modes, schemas, fake tensors, autograd's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

from .lookup import find
from .operators import operator

MODE = "torch.utils._python_dispatch.TorchDispatchMode"
FAKE = "torch._subclasses.fake_tensor.FakeTensorMode"
READS_NUMBERS = "torch._subclasses.fake_tensor.DataDependentOutputException"
SHAPED_BY_NUMBERS = "torch._subclasses.fake_tensor.DynamicOutputShapeException"
TASK = "torch._C._current_graph_task_id"
WRAPPER = "torch.Tensor._make_wrapper_subclass"
PLAIN_CALLS = "torch._C.DisableTorchFunctionSubclass"


class DispatchMode:
    """A block in which `__torch_dispatch__` is called instead of every operation.

    Torch's mode is built when the block is entered and not when a class is defined, so a module
    that defines one can be imported in a torch without modes.
    """

    among_compiled = True  # whether compiled modules may run inside; without, a call costs less

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def __enter__(self) -> Any:
        relay = relay_type(find(MODE), self.among_compiled)(self)
        relay.__enter__()
        self.__dict__.setdefault("entered", []).append(relay)
        return self

    def __exit__(self, *error: Any) -> None:
        self.__dict__["entered"].pop().__exit__(*error)


@cache
def relay_type(mode: Any, guarded: bool) -> Any:
    asks_device: Any = operator("prim.device.default")

    class Relay(mode):
        def __init__(self, watcher: DispatchMode) -> None:
            super().__init__()
            self.watcher = watcher

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if op is asks_device:  # two calls in three on fake tensors, and nothing to watch
                known = getattr(args[0], "fake_device", None)
                return op(*args) if known is None else known
            return self.watcher.__torch_dispatch__(op, types, args, kwargs)

    if not guarded:  # torch wraps the method, as the class is made, to keep its compiler out of it
        Relay.__torch_dispatch__ = relayed  # type: ignore[assignment,method-assign]
    return Relay


def relayed(relay: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return relay.watcher.__torch_dispatch__(op, types, args, kwargs)


Answer = Callable[[Any, Any, Any], Any]


def fake_tensor_mode(answer: Answer | None = None) -> Any:
    """Torch's mode of fake tensors, real ones allowed among them.

    Args:
        answer: asked first, with the mode, the operation and its arguments; NotImplemented leaves
            the answer to torch.
    """
    mode = find(FAKE)
    return fake_type(mode)(answer) if answer else mode(allow_non_fake_inputs=True)


@cache
def fake_type(mode: Any) -> Any:
    class Fake(mode):
        def __init__(self, answer: Answer) -> None:
            super().__init__(allow_non_fake_inputs=True)
            self.answer = answer

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = self.answer(self, op, args)
            return (
                super().__torch_dispatch__(op, types, args, kwargs)
                if made is NotImplemented
                else made
            )

    return Fake


@contextmanager
def silent_fake_tensors() -> Iterator[None]:
    """A block in which fake tensors log no traceback of what they raise."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def reads_numbers() -> type[Exception]:
    """What a fake tensor raises where code asks for a number in it."""
    return find(READS_NUMBERS)


def shaped_by_numbers() -> type[Exception]:
    """What a fake tensor raises where an operation's shape depends on the numbers in it."""
    return find(SHAPED_BY_NUMBERS)


def wraps_tensors(kind: type) -> bool:
    """Whether a type of tensor is made of plain ones inside, by torch's public protocol."""
    inner = hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
    return inner and issubclass(kind, Tensor) and kind is not Tensor


def without_storage(kind: type, like: Tensor, device: Any) -> Any:
    """A tensor of a class of ours, with the shape and type of another, on a device, but no numbers.

    Args:
        kind: answers every operation by its `__torch_dispatch__`.
    """
    return find(WRAPPER)(kind, like.size(), strides=like.stride(), dtype=like.dtype, device=device)


def plain_calls() -> Any:
    """A block in which functions of torch do not ask a tensor's class first."""
    return find(PLAIN_CALLS)()


def operator_name(op: Any) -> str:
    """An operator's name without its namespace and its overload's."""
    return op.name().partition("::")[2].partition(".")[0]


def argument_names(op: Any) -> list[str]:
    """What an operator calls its arguments, in order; nothing where this torch does not say."""
    schema = getattr(op, "_schema", None)
    return [argument.name for argument in schema.arguments] if schema else []


def writes_in_place(op: Any) -> bool:
    """Whether an operator changes one of its arguments; by its name where torch does not say."""
    schema = getattr(op, "_schema", None)
    return schema.is_mutable if schema else op.name().partition(".")[0].endswith("_")


def written_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator changes; all of them where torch does not say which."""
    if not writes_in_place(op):
        return []
    schema = getattr(op, "_schema", None)
    if schema is None:
        return [*args, *kwargs.values()]
    given = [*zip(schema.arguments, args)]
    given += [(one, kwargs[one.name]) for one in schema.arguments if one.name in kwargs]
    return [value for one, value in given if one.alias_info and one.alias_info.is_write]


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return find(TASK)() != -1
