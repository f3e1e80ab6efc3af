"""Operators of torch by name, and functions that torch has for many tensors or few bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .lookup import find, has

NORM, DIVIDE, LERP = "torch._foreach_norm", "torch._foreach_div_", "torch._foreach_lerp_"
SCALED = "torch._scaled_mm"
GATHER = "torch.ops._c10d_functional.all_gather_into_tensor"
SCATTER = "torch.ops._c10d_functional.reduce_scatter_tensor"
CUDNN_ATTENTION = "aten._scaled_dot_product_cudnn_attention"
FLASH_ATTENTION = "aten._scaled_dot_product_flash_attention"
FLASH_ATTENTION_BACKWARD = "aten._scaled_dot_product_flash_attention_backward"
OVERRIDES: list[torch.library.Library] = []  # a library that is collected takes its kernels along
WAIT = "torch.ops._c10d_functional.wait_tensor"


class Operators:
    """Values by operator, looked up when first asked for; operators that torch lacks are left out.

    Args:
        names: such as "aten.mm", or "aten.mm.default" for one overload; with or without values.
    """

    def __init__(self, names: Mapping[str, Any] | Iterable[str]) -> None:
        self.names = names if isinstance(names, Mapping) else dict.fromkeys(names)

    @cached_property
    def found(self) -> dict[Any, Any]:
        reached = {operator(name): value for name, value in self.names.items()}
        return {op: value for op, value in reached.items() if op is not None}

    def __contains__(self, op: Any) -> bool:
        return op in self.found

    def __getitem__(self, op: Any) -> Any:
        return self.found[op]


def operator(name: str) -> Any | None:
    """The operator of that name, or its overload; None where this torch has none."""
    namespace, word, *overload = name.split(".")
    path = f"torch.ops.{namespace}.{word}"
    if namespace.startswith("_") or word.startswith("_"):
        packet = find(path) if has(path) else None
    else:
        packet = getattr(getattr(torch.ops, namespace), word, None)
    return getattr(packet, overload[0], None) if overload else packet


def override_kernel(name: str, device: str, make: Callable[[Any], Any]) -> bool:
    """Have an operator run another kernel on a device; whether this torch has the operator.

    Args:
        make: given torch's own kernel, makes the other; both take the dispatcher's keys first.
    """
    if operator(name) is None:
        return False
    word = name.removeprefix("aten.")
    torchs = torch.library.get_kernel(f"aten::{word}", device)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # that there was a kernel is known
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        library.impl(word, make(torchs.call_boxed), device, with_keyset=True)
    OVERRIDES.append(library)
    return True


def foreach_norm(tensors: list[Tensor], *, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The Euclidean norm of each tensor."""
    if has(NORM):
        return list(find(NORM)(tensors, 2, dtype))
    return [torch.linalg.vector_norm(tensor, 2, dtype=dtype) for tensor in tensors]


def foreach_divide_(tensors: list[Tensor], divisor: Tensor) -> None:
    """Divide each tensor in place."""
    if has(DIVIDE):
        find(DIVIDE)(tensors, divisor)
        return
    for tensor in tensors:
        tensor.div_(divisor)


def foreach_lerp_(tensors: list[Tensor], ends: list[Tensor], weight: float) -> None:
    """Move each tensor in place towards its end, by this share of the way."""
    if has(LERP) and tensors:  # torch refuses an empty list
        find(LERP)(tensors, ends, weight)
        return
    for tensor, end in zip(tensors, ends):
        tensor.lerp_(end, weight)


def scaled_mm(left: Tensor, right: Tensor, **scales: Any) -> Tensor:
    """The matmul of two float8 matrices, each with its scale."""
    return find(SCALED)(left, right, **scales)


def look_up_scaled_mm() -> None:
    """Find the function now, before torch.compile traces code that calls `scaled_mm`."""
    has(SCALED)


def look_up_collectives() -> None:
    """Find what `all_gather` and `reduce_scatter` call, before torch.compile traces them."""
    for path in (GATHER, SCATTER, WAIT):
        find(path)


def all_gather(tensor: Tensor, ways: int, group: str) -> Tensor:
    """Every rank's tensor, one after the other along the first dimension."""
    return find(WAIT)(find(GATHER)(tensor, ways, group))


def reduce_scatter(tensor: Tensor, ways: int, group: str) -> Tensor:
    """This rank's slice, along the first dimension, of the sum over ranks."""
    return find(WAIT)(find(SCATTER)(tensor, "sum", ways, group))
