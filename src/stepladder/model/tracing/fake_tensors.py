"""Running a module's forward pass with fake tensors, so that its operations can be traced.

A fake tensor has a shape, a dtype and a device but no numbers, so tracing costs no memory and the
module stays as it was. A module on the meta device is traced as if it were on the CPU, where the
tensors that its code creates are as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stepladder.model.anatomy.anatomy import find_part
from stepladder.seam.dispatch import fake_tensor_mode
from stepladder.seam.modules import compiled_calls_put_away, tensors_of
from stepladder.seam.operators import Operators
from stepladder.seam.pytree import tree_map

from .copy_module import copy_module

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


GROUPED = Operators(("aten._grouped_mm.default",))


def grouped_matmul_in_any_dtype(mode: Any, op: Any, args: Any) -> Any:
    """Let fake grouped matmuls (of experts) take any dtype, as torch's kernel does.

    Torch's kernel accepts them all; its fake implementation takes only bfloat16.
    """
    if op not in GROUPED or args[0].dtype == torch.bfloat16:
        return NotImplemented
    with mode:
        ends = args[2] if len(args) > 2 else None
        return args[0].new_empty(grouped_matmul_shape(args[0], args[1], ends))


def grouped_matmul_shape(first: Tensor, second: Tensor, ends: Tensor | None) -> tuple[int, ...]:
    """The shape of a grouped matmul: grouped by rows, by columns, or along the inner dimension."""
    if first.dim() == second.dim() == 3:
        return (*first.shape[:2], second.shape[-1])
    if first.dim() == second.dim() == 2:
        assert ends is not None
        return (ends.shape[0], first.shape[0], second.shape[-1])
    return (first.shape[-2], second.shape[-1])


class FakeForward:
    """A module's forward pass on fake tensors; call it inside its `fake` mode."""

    def __init__(self, module: nn.Module, *, store: torch.dtype | None = None) -> None:
        self.module, self.store = module, store
        self.device = device_of(module)
        self.fake = fake_tensor_mode(grouped_matmul_in_any_dtype)

    def __call__(self, inputs: Inputs) -> Any:
        return self.run(self.to_fake(inputs), self.states())

    def run(self, fake_inputs: Any, states: dict[str, Tensor]) -> Any:
        """Run the forward pass on fake inputs and states that the caller made."""
        named = dict(fake_inputs) if isinstance(fake_inputs, Mapping) else {}
        args = fake_inputs if isinstance(fake_inputs, tuple | list) else (fake_inputs,)
        args = () if named else tuple(args)
        with uncompiled(self.module):
            return functional_call(self.module, states, args, named, tie_weights=False)

    def states(self) -> dict[str, Tensor]:
        """Fake parameters and buffers by name; a shared tensor appears under each of its names.

        Left to itself, `functional_call` would swap a module shared by two parents twice and put
        the fake tensor back as if it were the original.
        """
        made: dict[int, Tensor] = {}
        states: dict[str, Tensor] = {}
        for prefix, part in self.module.named_modules():
            for name, tensor in tensors_of(part).items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = self.to_fake(tensor).requires_grad_(tensor.requires_grad)
                    states[f"{prefix}.{name}".lstrip(".")] = made[id(tensor)]
        return states

    def to_fake(self, values: Any) -> Any:
        return tree_map(self._to_fake, values)

    def _to_fake(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        cast = self.store is not None and value.is_floating_point()
        dtype = self.store if cast else value.dtype
        return torch.empty(value.shape, dtype=dtype, device=self.device)


class RealForward(FakeForward):
    """The forward pass of a real copy on the CPU, for modules with data-dependent control flow."""

    def __init__(self, module: nn.Module, *, store: torch.dtype | None = None) -> None:
        self.module, self.store = copy_module(module), store
        self.device, self.fake = torch.device("cpu"), nullcontext()

    def _to_fake(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        cast = self.store is not None and value.is_floating_point()
        return value.detach().to("cpu", self.store if cast else value.dtype, copy=True)


def device_of(module: nn.Module) -> torch.device:
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    return torch.device("cpu") if device.type == "meta" else device


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Context in which a compiled module runs eagerly, so that its operations can be traced.

    Under a dispatch mode the compiler falls back to eager and caches that: the code would silently
    never be compiled again. So the compiled calls are removed and restored afterwards.
    """
    eager = torch.compiler.set_stance("force_eager")  # for what torch.compile itself returned
    with compiled_calls_put_away(module), eager:
        yield


@contextmanager
def running_parts(module: nn.Module, names: Iterable[str]) -> Iterator[list[str]]:
    """A list whose last entry is always the innermost of these parts that is running."""
    inside = [""]
    handles = []
    for name in names:
        part = find_part(module, name)
        if part is not None:
            handles.append(part.register_forward_pre_hook(partial(enter, inside, name)))
            handles.append(part.register_forward_hook(partial(leave, inside)))
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


def enter(inside: list[str], name: str, part: nn.Module, args: Any) -> None:
    inside.append(name)


def leave(inside: list[str], part: nn.Module, args: Any, output: Any) -> None:
    inside.pop()
