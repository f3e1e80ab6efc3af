"""Operations of a training step, as a roofline counts them: FLOPs, bytes, and what to call.

Bytes are those of every operand and result once. Multiply and add count as two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch.nn import functional

from .stopwatch import Work

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
         "fp16": torch.float16}  # fmt: skip
COMPUTES = {"cuda": ("fp32", "tf32", "bf16", "fp16"), "cpu": ("fp32", "bf16", "fp16")}
SQUARES = {"cuda": (1024, 2048, 4096, 8192), "cpu": (256, 512, 1024, 2048)}
STREAM = {"cuda": 2**28, "cpu": 2**26}  # elements, of fp32: beyond any cache
COPIED_BYTES = {"cuda": 2**28, "cpu": 2**28}
ATTENTION = {"cuda": (16, 16, 2048, 64), "cpu": (4, 8, 512, 64)}  # samples, heads, length, width
STREAMS = ("scale", "add", "AdamW update")  # whose operands are beyond any cache
ROWS = {"cuda": (65536, 4096), "cpu": (16384, 1024)}  # of layer norm and GELU
PARAMETERS = {"cuda": 2**28, "cpu": 2**24}  # of the update
# FLOPs an element: mean 1, variance 3, normalising 2, scale and shift 2; a GELU's polynomial about
# 10; AdamW's two means, their correction, root, division and decay.
NORM_FLOPS, GELU_FLOPS, ADAMW_FLOPS = 8, 10, 14
ADAMW_TENSORS = 7  # parameter, mean and square read and written, the gradient read


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    shape: str
    compute: str
    flops: float
    bytes: float
    make: Callable[[torch.device], Work]  # its operands on the device


def operations_of(kind: str, computes: Sequence[str]) -> Iterator[Operation]:
    """Matmuls of every type; the rest in fp32, and in the type that most training uses here."""
    for compute in computes:
        yield from (square(size, compute) for size in SQUARES[kind])
    usual = next((each for each in ("bf16", "fp16") if each in computes), "fp32")
    for compute in dict.fromkeys(("fp32", usual)):
        yield attention(ATTENTION[kind], compute)
        yield layer_norm(ROWS[kind], compute)
        yield gelu(ROWS[kind], compute)
    yield scale(kind)
    yield add(kind)
    yield adamw(PARAMETERS[kind])


def square(size: int, compute: str) -> Operation:
    def make(device: torch.device) -> Work:
        left, right = (draw((size, size), compute, device) for _ in range(2))
        out = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=out)

    moved = 3.0 * size**2 * TYPES[compute].itemsize
    return Operation("matmul", f"{size}", compute, 2.0 * size**3, moved, make)


def attention(shape: tuple[int, ...], compute: str) -> Operation:
    def make(device: torch.device) -> Work:
        q, k, v = (draw(shape, compute, device) for _ in range(3))
        return lambda: functional.scaled_dot_product_attention(q, k, v)

    samples, heads, length, width = shape
    flops = 4.0 * samples * heads * length**2 * width  # two products
    moved = 4.0 * prod(shape) * TYPES[compute].itemsize
    return Operation("attention", "x".join(map(str, shape)), compute, flops, moved, make)


def layer_norm(shape: tuple[int, ...], compute: str) -> Operation:
    def make(device: torch.device) -> Work:
        x, weight = draw(shape, compute, device), draw(shape[1:], compute, device)
        return lambda: functional.layer_norm(x, weight.shape, weight, weight)

    return element_wise("layer norm", shape, compute, NORM_FLOPS, 2, make)


def gelu(shape: tuple[int, ...], compute: str) -> Operation:
    def make(device: torch.device) -> Work:
        x = draw(shape, compute, device)
        return lambda: functional.gelu(x)

    return element_wise("GELU", shape, compute, GELU_FLOPS, 2, make)


def scale(kind: str) -> Operation:
    size = STREAM[kind]

    def make(device: torch.device) -> Work:
        x = draw((size,), "fp32", device)
        return lambda: x.mul_(-1.0)

    return element_wise("scale", (size,), "fp32", 1, 2, make)


def add(kind: str) -> Operation:
    """In place: a processor reads what it is about to overwrite, and that would not be counted."""
    size = STREAM[kind]

    def make(device: torch.device) -> Work:
        x, y = (draw((size,), "fp32", device) for _ in range(2))
        return lambda: x.add_(y)

    return element_wise("add", (size,), "fp32", 1, 3, make)


def adamw(size: int) -> Operation:
    def make(device: torch.device) -> Work:
        weight = torch.nn.Parameter(draw((size,), "fp32", device))
        weight.grad = draw((size,), "fp32", device)
        return torch.optim.AdamW([weight], fused=True).step

    return element_wise("AdamW update", (size,), "fp32", ADAMW_FLOPS, ADAMW_TENSORS, make)


def element_wise(
    name: str,
    shape: tuple[int, ...],
    compute: str,
    flops: int,
    tensors: int,
    make: Callable[[torch.device], Work],
) -> Operation:
    """So many FLOPs an element, and tensors that are read or written."""
    elements = prod(shape)
    moved = float(tensors * elements * TYPES[compute].itemsize)
    words = "x".join(map(str, shape))
    return Operation(name, words, compute, float(flops * elements), moved, make)


def copy_bytes(device: torch.device) -> tuple[int, Work]:
    """A copy to the device: on a GPU over its host link, on a CPU within memory."""
    size = COPIED_BYTES[device.type]
    on_gpu = device.type == "cuda"
    here = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    return size, lambda: there.copy_(here, non_blocking=True)


def draw(shape: tuple[int, ...], compute: str, device: torch.device) -> torch.Tensor:
    """Random numbers: zeros would spare the chip the power that real ones cost."""
    return torch.randn(shape, device=device, dtype=TYPES[compute])
