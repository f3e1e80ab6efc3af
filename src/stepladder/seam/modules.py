"""What an nn.Module keeps in attributes of its own: children, parameters, buffers, its call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from .lookup import find, has

CONVOLVE = "torch.nn.Conv2d._conv_forward"
CALL = "_call_impl"  # the method that runs forward and the hooks around it
COMPILED_CHILD = "_orig_mod"  # the name under which torch.compile's wrapper holds the module
OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
EXTRA_STATE = "_extra_state"  # the key of what `get_extra_state` returns, in a state dict
STATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Its children by name; None for one that was taken away and keeps its place."""
    return module._modules


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """Its own parameters by name, not its children's; None for one it could have and has not."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Its own buffers by name, not its children's."""
    return module._buffers


def module_attributes(module: nn.Module) -> dict[str, Any]:
    """What its author's code keeps in the instance, apart from tensors and children of torch's."""
    return {name: value for name, value in vars(module).items() if name not in OWN_ATTRIBUTES}


def tensors_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Its own parameters and buffers by name."""
    return {**module._parameters, **module._buffers}


def names_in(module: nn.Module) -> set[str]:
    """The names of its own parameters, buffers and children."""
    return {*module._parameters, *module._buffers, *module._modules}


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Its own buffers that belong to its state, by name."""
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer


def shallow_copy(module: nn.Module) -> nn.Module:
    """A copy that shares parameters and buffers, and whose children can be replaced alone."""
    same = copy(module)
    same._modules = dict(module._modules)
    return same


def set_parameters(module: nn.Module, parameters: Mapping[str, Any]) -> None:
    """Have the module read these as its own parameters, plain tensors among them."""
    module.__dict__["_parameters"] = parameters


def state_of(module: nn.Module) -> dict[str, Any]:
    """The containers of a module's parameters, buffers and children: whoever holds them too is
    changed with it."""
    return {name: module.__dict__[name] for name in STATE}


def pre_hooks(module: nn.Module) -> list[Any]:
    """What changes the module, or its inputs, before its forward."""
    return list(module._forward_pre_hooks.values())


def remove_own_hooks(module: nn.Module) -> None:
    """Take off hooks around forward that are not torch's, from all parts of a copy.

    Those of torch.nn.utils compute weights; others look on, or keep what they see.
    """
    for part in module.modules():
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key, hook in list(hooks.items()):
                home = getattr(hook, "__module__", None) or type(hook).__module__
                if home.partition(".")[0] != "torch":
                    del hooks[key]


def has_pre_hooks(module: nn.Module) -> bool:
    """Whether something changes the module's inputs before its forward."""
    return bool(module._forward_pre_hooks)


def is_compiled(module: nn.Module) -> bool:
    """Whether this very module runs compiled, by `.compile()`."""
    return getattr(module, "_compiled_call_impl", None) is not None


def compile_call(module: nn.Module, call: Callable[..., Any], options: Any) -> None:
    """Compile a module's call, as `.compile()` does, through a function of ours.

    Args:
        call: of a module and its arguments; `call_whole`, or a function with that code.
    """
    module._compiled_call_impl = torch.compile(MethodType(call, module), options=options)


def call_whole(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


@contextmanager
def compiled_calls_put_away(module: nn.Module) -> Iterator[None]:
    """A block in which every part runs as it was written."""
    parts = [part for part in module.modules() if is_compiled(part)]
    calls = [part._compiled_call_impl for part in parts]
    for part in parts:
        part._compiled_call_impl = None
    try:
        yield
    finally:
        for part, compiled in zip(parts, calls):
            part._compiled_call_impl = compiled


class Converted(nn.Module):
    """A module that is told when `.to()`, `.bfloat16()` or the like has changed its tensors."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.converted()
        return self

    def converted(self) -> None:
        raise NotImplementedError


@contextmanager
def fake_parameters_moved() -> Iterator[None]:
    """A block in which `.to()` and the like give a fake parameter other data, as a real one's.

    Torch swaps fake parameters for others, which nothing that was noted of them survives, and
    which fails where anything refers to them.
    """
    moved = nn.Module._apply

    def move(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for parameter in (one for one in self._parameters.values() if one is not None):
            with torch.no_grad():
                made = fn(parameter)
            if made is not parameter:
                parameter.data = made
                if hasattr(made, "fake_device"):
                    vars(parameter)["fake_device"] = made.fake_device
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    nn.Module._apply = move  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = moved  # type: ignore[method-assign]


def convolves_plainly(conv: nn.Conv2d) -> bool:
    """Whether a convolution computes as torch's own class does, and can be made to do otherwise."""
    if not has(CONVOLVE) or "_conv_forward" in vars(conv):
        return False
    return type(conv)._conv_forward is find(CONVOLVE)


def convolve_by(
    conv: nn.Conv2d, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> None:
    """Have a convolution compute by a function of its input, weight and bias."""
    conv._conv_forward = function  # type: ignore[method-assign, assignment]
