"""Triton programs for Adam's update of parameters whose state is smaller than 16 bytes.

A bf16 weight and what rounding took from it are the float32 master: they are joined and split by
integer operations in registers, so the master never stands in memory. See [Note: a master in two
pieces] in compact_state.py for the pieces and the random bits; these programs compute the same.

All tensors of a program are read with the same number of elements a thread (`EACH`), whatever the
size of an element: were each read with 16 bytes a thread, the compiler would carry every number
through shared memory from one arrangement to the other.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepladder.plan.shared_constants import MOMENT_GROUP

from .triton_adamw import ALIGNED, TYPES, adam, addresses, blocks_of, on_device

BLOCK = 2048
WARPS = 8


@triton.jit
def _at(table, kind, num_tensors, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    return tl.multiple_of(tl.load(table + kind * num_tensors).to(tl.pointer_type(KIND)), ALIGNED)


@triton.jit
def _unsigned(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def _random(places, first_key, second_key):
    """32 random bits for each place: lowbias32 with a second key between its multiplications."""
    x = places ^ first_key
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= (x >> 15) ^ second_key
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _noise(places, keys, corrections, owner):
    """The random bits of a parameter's elements at this step."""
    step = tl.load(corrections + 3 * owner + 2).to(tl.uint32)
    key = _unsigned(tl.load(keys + 2 * owner))
    first = _random(step, key, 0x9E3779B9)
    second = _random(first, key ^ 0x85EBCA6B, step)
    return _random(places.to(tl.uint32) + _unsigned(tl.load(keys + 2 * owner + 1)), first, second)


@triton.jit
def _joined(high, low, raised):
    """The master of a weight and its remainder; `raised`: the weight came from exactly half."""
    high -= (low + raised > 0x8000).to(tl.int32)
    return ((high << 16) | low).to(tl.float32, bitcast=True)


@triton.jit
def _split(value):
    """A master's weight and remainder, and 1 where the weight was rounded up from exactly half."""
    bits = _unsigned(value)
    odd, low = (bits >> 16) & 1, bits & 0xFFFF
    weight = tl.where(value == value, (bits + 0x7FFF + odd) >> 16, 0x7FC0)
    return weight, low, tl.where(low == 0x8000, odd, 0)


@triton.jit
def _update_split(
    table, sizes, owners, firsts, corrections, keys, divisor, bad,
    lr, beta1, beta2, eps, decay, num_tensors,
    GRADIENT: tl.constexpr, GRADIENT_BYTES: tl.constexpr, MOMENT: tl.constexpr,
    MOMENT_BYTES: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr,
    MULTIPLE: tl.constexpr,
):  # fmt: skip
    """14 bytes, or 10 where a moment has 2."""
    owner = tl.load(owners + tl.program_id(0))
    row = table + owner
    weight = _at(row, 0, num_tensors, tl.int16, 2 * EACH)
    remainder = _at(row, 1, num_tensors, tl.int16, 2 * EACH)
    gradient = _at(row, 2, num_tensors, GRADIENT, GRADIENT_BYTES * EACH)
    mean = _at(row, 3, num_tensors, MOMENT, MOMENT_BYTES * EACH)
    square = _at(row, 4, num_tensors, MOMENT, MOMENT_BYTES * EACH)
    SHIFT: tl.constexpr = 32 - 8 * MOMENT_BYTES
    first_place = tl.load(firsts + tl.program_id(0)).to(tl.int64) * BLOCK
    places = tl.multiple_of(first_place, BLOCK) + tl.arange(0, BLOCK)
    size = tl.multiple_of(tl.load(sizes + owner), MULTIPLE)
    limit = tl.where(tl.load(bad) == 0.0, size, 0)  # here: the host would have to wait to know
    inside, written = places < size, places < limit
    grad = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(weight + places, mask=inside, other=0).to(tl.int32)
    low = tl.load(remainder + places, mask=inside, other=0).to(tl.int32) & 0xFFFF
    m = tl.load(mean + places, mask=inside, other=0).to(tl.int32) << SHIFT
    v = tl.load(square + places, mask=inside, other=0).to(tl.int32) << SHIFT
    value = _joined(high, low, (_unsigned(v) >> 31).to(tl.int32))
    m, v = m.to(tl.float32, bitcast=True), (v & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    first, second = tl.load(corrections + 3 * owner), tl.load(corrections + 3 * owner + 1)
    value, m, v = adam(
        value, grad / tl.load(divisor), m, v, first, second,
        lr, beta1, beta2, eps, decay, DECOUPLED,
    )  # fmt: skip
    rounded, low_bits, raised = _split(value)
    m_bits, v_bits = _unsigned(m), _unsigned(v)
    if SHIFT:
        noise = _noise(places, keys, corrections, owner)
        m_bits, v_bits = m_bits + (noise & 0xFFFF), v_bits + (noise >> 16)
    v_bits |= raised << 31
    tl.store(mean + places, (m_bits >> SHIFT).to(MOMENT), mask=written)
    tl.store(square + places, (v_bits >> SHIFT).to(MOMENT), mask=written)
    tl.store(remainder + places, low_bits.to(tl.int16), mask=written)
    tl.store(weight + places, rounded.to(tl.int16), mask=written)


@triton.jit
def _companded(m, v, noise):
    """Codes and scales of both moments, a group a row."""
    root = tl.sqrt(v)
    m_scale, v_scale = tl.max(tl.abs(m), axis=1), tl.max(root, axis=1)
    m *= tl.where(m_scale > 0.0, 1.0 / m_scale, 0.0)[:, None]
    root *= tl.where(v_scale > 0.0, 255.0 / v_scale, 0.0)[:, None]
    m_noise = ((noise >> 8) & 0xFFF).to(tl.float32) * (1.0 / 4096)
    v_noise = (noise >> 20).to(tl.float32) * (1.0 / 4096)
    m_code = tl.floor(254.0 * m / (1.0 + tl.abs(m)) + m_noise).to(tl.int32)
    v_code = (root + v_noise).to(tl.int32)
    m_code = tl.minimum(tl.maximum(m_code, -127), 127).to(tl.int8)
    return m_code, tl.minimum(tl.maximum(v_code, 1), 255).to(tl.uint8), m_scale, v_scale


@triton.jit
def _update_companded(
    table, sizes, owners, firsts, corrections, keys, divisor, bad,
    lr, beta1, beta2, eps, decay, num_tensors,
    GRADIENT: tl.constexpr, GRADIENT_BYTES: tl.constexpr, DECOUPLED: tl.constexpr,
    BLOCK: tl.constexpr, EACH: tl.constexpr, MULTIPLE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """7 bytes: a row of each program is a group of elements."""
    owner = tl.load(owners + tl.program_id(0))
    row = table + owner
    weight = _at(row, 0, num_tensors, tl.int16, 2 * EACH)
    remainder = _at(row, 1, num_tensors, tl.uint8, EACH)
    gradient = _at(row, 2, num_tensors, GRADIENT, GRADIENT_BYTES * EACH)
    mean, square = (
        _at(row, 3, num_tensors, tl.int8, EACH),
        _at(row, 4, num_tensors, tl.uint8, EACH),
    )
    first_place = tl.load(firsts + tl.program_id(0)).to(tl.int64) * BLOCK
    size = tl.multiple_of(tl.load(sizes + owner), MULTIPLE)
    rows = tl.arange(0, BLOCK // GROUP)
    groups = first_place // GROUP + rows
    mean_scale = _at(row, 5, num_tensors, tl.float32, 4) + groups
    square_scale = _at(row, 6, num_tensors, tl.float32, 4) + groups
    scaled = groups * GROUP < size
    local = rows[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    places = tl.multiple_of(first_place, BLOCK) + local
    limit = tl.where(tl.load(bad) == 0.0, size, 0)
    inside, written = places < size, places < limit
    grad = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(weight + places, mask=inside, other=0).to(tl.int32)
    low = tl.load(remainder + places, mask=inside, other=0).to(tl.int32)
    m = tl.load(mean + places, mask=inside, other=0).to(tl.float32)
    v = tl.load(square + places, mask=inside, other=0).to(tl.float32)
    m = tl.load(mean_scale, mask=scaled, other=0.0)[:, None] * (m / (254.0 - tl.abs(m)))
    v *= (tl.load(square_scale, mask=scaled, other=0.0) * (1.0 / 255.0))[:, None]
    first, second = tl.load(corrections + 3 * owner), tl.load(corrections + 3 * owner + 1)
    value, m, v = adam(
        _joined(high, low << 8, 1), grad * (1.0 / tl.load(divisor)), m, v * v, first, second,
        lr, beta1, beta2, eps, decay, DECOUPLED,
    )  # fmt: skip
    noise = _noise(places, keys, corrections, owner)
    bits = _unsigned(value) + (noise & 0xFF)
    rounded = tl.where(value == value, (bits + 0x8000) >> 16, 0x7FC0)
    m_code, v_code, m_scale, v_scale = _companded(m, v, noise)
    tl.store(mean + places, m_code, mask=written)
    tl.store(square + places, v_code, mask=written)
    tl.store(mean_scale, m_scale, mask=groups * GROUP < limit)
    tl.store(square_scale, v_scale, mask=groups * GROUP < limit)
    tl.store(remainder + places, ((bits >> 8) & 0xFF).to(tl.uint8), mask=written)
    tl.store(weight + places, rounded.to(tl.int16), mask=written)


class Row(Protocol):
    """A `CompactRow`, as far as a launch reads it."""

    @property
    def bytes(self) -> int: ...
    @property
    def tensors(self) -> tuple[Tensor, ...]: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def gradient(self) -> Tensor: ...
    @property
    def key(self) -> int: ...
    @property
    def start(self) -> int: ...


def update_(
    rows: Sequence[Row],
    counted: Tensor,
    divisor: Tensor,
    bad: Tensor,
    rule: tuple[float, float, float, float, float, bool],
) -> None:
    """Update contiguous parameters whose state takes the same bytes; nothing where `bad` is 1."""
    *numbers, decoupled = rule
    first = rows[0]
    device, size = first.weight.device, first.bytes
    sizes, owners, firsts = blocks_of(tuple(r.weight.numel() for r in rows), device, BLOCK)
    table = addresses(
        tuple(t.data_ptr() for kind in zip(*(r.tensors for r in rows)) for t in kind), device
    )
    keys = keys_of(tuple((r.key, r.start & 0xFFFFFFFF) for r in rows), device)
    wide = size == 14 or first.gradient.dtype == torch.float32
    moments = {"MOMENT": tl.int32 if size == 14 else tl.int16, "MOMENT_BYTES": (size - 6) // 2}
    split = size != 7
    program = _update_split if split else _update_companded
    own = moments if split else {"GROUP": MOMENT_GROUP}
    program[(len(owners),)](
        table, sizes, owners, firsts, counted, keys, divisor, bad,
        *numbers, len(rows), GRADIENT=TYPES[first.gradient.dtype],
        GRADIENT_BYTES=first.gradient.element_size(), DECOUPLED=decoupled, BLOCK=BLOCK,
        EACH=4 if wide else 8, MULTIPLE=multiple(rows), num_warps=WARPS, **own,
    )  # fmt: skip
    for row in rows:
        torch.autograd.graph.increment_version(row.weight)


def multiple(rows: Sequence[Row]) -> int:
    """A divisor of all sizes: vector loads need to know that none crosses a tensor's end."""
    return ALIGNED if all(row.weight.numel() % ALIGNED == 0 for row in rows) else 1


@lru_cache(maxsize=64)
def keys_of(keys: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    unsigned = torch.tensor(keys, dtype=torch.int64)
    return on_device(torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned).int(), device)
