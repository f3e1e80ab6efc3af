"""Stand-ins: fake tensors that take a module's place while its forward pass is watched.

A fake tensor has a shape, a type and a device but no numbers, so the watching costs no memory and
the module is left as it was. A module on the meta device is watched as if it were on the CPU, where
the tensors its own code makes appear too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stepladder.model.anatomy.anatomy import part_of
from stepladder.seam.dispatch import fake_tensor_mode
from stepladder.seam.modules import compiled_calls_put_away, tensors_of
from stepladder.seam.operators import Operators
from stepladder.seam.pytree import tree_map

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


GROUPED = Operators(("aten._grouped_mm.default",))


def grouped_in_any_type(mode: Any, op: Any, args: Any) -> Any:
    """An answer where torch's own fake tensors are stricter than its kernel.

    Experts' products by groups run in any type; without numbers torch takes bfloat16 alone.
    """
    if op not in GROUPED or args[0].dtype == torch.bfloat16:
        return NotImplemented
    with mode:
        ends = args[2] if len(args) > 2 else None
        return args[0].new_empty(grouped_shape(args[0], args[1], ends))


def grouped_shape(first: Tensor, second: Tensor, ends: Tensor | None) -> tuple[int, ...]:
    """The shape of a product by groups: of rows, of columns, or of what is summed over."""
    if first.dim() == second.dim() == 3:
        return (*first.shape[:2], second.shape[-1])
    if first.dim() == second.dim() == 2:
        assert ends is not None
        return (ends.shape[0], first.shape[0], second.shape[-1])
    return (first.shape[-2], second.shape[-1])


class Rehearsal:
    """A module and its inputs, stood in for; call it inside `fake` to run the forward pass."""

    def __init__(self, module: nn.Module, *, store: torch.dtype | None = None) -> None:
        self.module, self.store = module, store
        self.device = device_of(module)
        self.fake = fake_tensor_mode(grouped_in_any_type)

    def __call__(self, inputs: Inputs) -> Any:
        return self.run(self.stand_in(inputs), self.states())

    def run(self, stood_in: Any, states: dict[str, Tensor]) -> Any:
        """The forward pass on stand-ins that somebody keeps an eye on."""
        named = dict(stood_in) if isinstance(stood_in, Mapping) else {}
        args = stood_in if isinstance(stood_in, tuple | list) else (stood_in,)
        args = () if named else tuple(args)
        with uncompiled(self.module):
            return functional_call(self.module, states, args, named, tie_weights=False)

    def states(self) -> dict[str, Tensor]:
        """Stand-ins by name: a shared tensor's under each of its names, a shared module's once.

        Left to itself, `functional_call` would swap a module shared by two parents twice and put
        the stand-in back as if it were the original.
        """
        made: dict[int, Tensor] = {}
        states: dict[str, Tensor] = {}
        for prefix, part in self.module.named_modules():
            for name, tensor in tensors_of(part).items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = self.stand_in(tensor).requires_grad_(
                            tensor.requires_grad
                        )
                    states[f"{prefix}.{name}".lstrip(".")] = made[id(tensor)]
        return states

    def stand_in(self, values: Any) -> Any:
        return tree_map(self._stand_in, values)

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        cast = self.store is not None and value.is_floating_point()
        dtype = self.store if cast else value.dtype
        return torch.empty(value.shape, dtype=dtype, device=self.device)


class Probe(Rehearsal):
    """The real thing on the CPU, for modules whose course depends on numbers: a copy runs."""

    def __init__(self, module: nn.Module, *, store: torch.dtype | None = None) -> None:
        self.module, self.store = deepcopy(module), store
        self.device, self.fake = torch.device("cpu"), nullcontext()

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        cast = self.store is not None and value.is_floating_point()
        return value.detach().to("cpu", self.store if cast else value.dtype, copy=True)


def blueprint(module: nn.Module) -> nn.Module:
    """A copy of the module on the meta device: its shape and code, none of its numbers."""
    tensors = (*module.parameters(), *module.buffers())
    memo: dict[int, Any] = {}
    for tensor in tensors:
        empty = torch.empty_like(tensor, device="meta")
        trained = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if trained else empty
    return deepcopy(module, memo)


def device_of(module: nn.Module) -> torch.device:
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    return torch.device("cpu") if device.type == "meta" else device


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Run a module as it was written while somebody watches its operations.

    The compiler steps aside under a dispatch mode and remembers that: code once run watched is
    never compiled again, silently. So the compiled calls are put away and brought back after.
    """
    eager = torch.compiler.set_stance("force_eager")  # for what torch.compile itself returned
    with compiled_calls_put_away(module), eager:
        yield


@contextmanager
def running(module: nn.Module, names: Iterable[str]) -> Iterator[list[str]]:
    """A list whose last entry is always the innermost of these parts now running."""
    inside = [""]
    handles = []
    for name in names:
        part = part_of(module, name)
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
