"""Fused attention: its shape, and what its kernels take.

A kernel works on tiles, also of rows and keys that are not there; for each tile of queries it
begins and ends once, which takes as long as some more keys would; a score that dropout may take
needs a random number. Fitted to the kernels of seven modules on an H200 (benchmarks/time_gpu.py):
counted so, heads of one width run at one rate from 197 to 2,048 keys, within a tenth.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepladder.planner.time.device_speed import Speed
from stepladder.planner.time.part_time import ATTENTION_BACKWARD
from stepladder.record import Calibration, Timing

BACKWARD_ARGUMENTS = 1  # before the query: the gradient
DROPOUT_ARGUMENT = 4  # of torch's function
TILE = 128  # queries, and keys
BEGINNING_KEYS = 145  # whose time beginning and ending a tile of queries takes
DROPOUT_FLOPS = {False: 400.0, True: 230.0}  # whose time a score's random number takes
# Time of a softmax over that of its products, in heads of 128: the type that the products run in.
EXPONENTIALS = {"bf16": 0.5, "fp16": 0.5}
FULL_HEAD = 128
# The rate so counted of heads of 128, over the one that a calibration or a table holds.
COUNTED_RATE = 1.5
MASKED_SHARE = 0.6  # of flash attention's rate, by the kernels that take a mask
SCORES_MOVED = {False: 6.0, True: 7.0}  # times that attention by plain products moves its scores
MOVED_BACK = 8  # tensors like the query, that kernels around the backward one read and write
KERNELS = 4  # of a forward and a backward pass


class AttentionShape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    length: int
    keys: int
    width: int
    causal: bool
    masked: bool
    dropped: bool = False  # whether scores are left out at random

    @property
    def flops(self) -> float:
        """Of the forward pass, with the tiles that it computes."""
        keys = tiles(self.keys)
        keys = (keys + TILE) / 2 if self.causal else keys
        rows = self.batch * self.heads * tiles(self.length)
        return 4.0 * rows * (keys + BEGINNING_KEYS) * self.width

    @property
    def scores(self) -> float:
        return float(self.batch * self.heads * self.length * self.keys)


def tiles(length: int) -> float:
    return float(-(-length // TILE) * TILE)


def attention_of(name: str, args: Any, kwargs: Any) -> AttentionShape:
    """Of the fused attention of any device, forward or backward."""
    first = BACKWARD_ARGUMENTS if "backward" in name else 0
    query, key = args[first], args[first + 1]
    numbers = [*args[first + 3 :], *kwargs.values()]
    causal = any(value is True for value in numbers) or bool(kwargs.get("is_causal"))
    masked = isinstance(kwargs.get("attn_mask"), Tensor)
    batch, heads, length, width = query.shape
    return AttentionShape(
        batch, heads, key.shape[1], length, key.shape[2], width, causal, masked
    )  # fmt: skip


@dataclass(eq=False)
class DropoutSeen(TorchFunctionMode):
    """Which attention drops scores: on the CPU that plays a GPU, its operation does not say so."""

    dropping: bool = False
    shapes: set[AttentionShape] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            late = args[DROPOUT_ARGUMENT] if len(args) > DROPOUT_ARGUMENT else 0.0
            self.dropping = bool(given.get("dropout_p", late))
        return func(*args, **given)

    def told(self, shape: AttentionShape, *, forward: bool) -> AttentionShape:
        """With whether it drops scores; a backward pass does as the forward pass of that shape."""
        if forward and self.dropping:
            self.shapes.add(shape)
        return shape._replace(dropped=shape in self.shapes)


def counted_rate(speed: Speed, compute: str, calibration: Calibration | None) -> float:
    """FLOP/s, as counted here, of heads of 128."""
    timings = [
        each
        for each in (calibration.timings if calibration else ())
        if (each.kind, each.compute) == ("attention", compute)
    ]
    if not timings:
        return COUNTED_RATE * speed.attention
    return statistics.median(rate_of(timing, speed) for timing in timings)


def rate_of(timing: Timing, speed: Speed) -> float:
    """Of a causal forward and backward pass that was timed."""
    samples, heads, length, width = timing.shape
    shape = AttentionShape(samples, heads, heads, length, length, width, True, False)
    moved = MOVED_BACK * samples * heads * length * width * speed.work_bytes
    beside = moved / speed.bandwidth + KERNELS * speed.kernel_seconds
    busy = max(timing.seconds - beside, timing.seconds / 2)
    whole = (1 + ATTENTION_BACKWARD) * shape.flops
    return whole / busy / width_share(width, timing.compute)


def width_share(width: int, compute: str) -> float:
    """The rate of heads of that width over that of 128 wide ones: each score needs an exponential
    whatever the width, and narrow heads do fewer products for it."""
    beside = EXPONENTIALS.get(compute, 0.0)
    return min((1 + beside) / (1 + beside * FULL_HEAD / max(width, 1)), 1.0)


def attention_seconds(
    shape: AttentionShape, speed: Speed, rate: float, compute: str, *, backward: bool, moved: float
) -> float:
    """Of the kernel alone; `moved` bytes are read and written around the one of backward."""
    flops = shape.flops * (ATTENTION_BACKWARD if backward else 1.0)
    if shape.dropped:
        flops += DROPOUT_FLOPS[backward] * shape.flops / (4.0 * shape.width)
    reached = rate * width_share(shape.width, compute) * (MASKED_SHARE if shape.masked else 1.0)
    return flops / reached + (moved / speed.bandwidth if backward else 0.0)


def by_products(shape: AttentionShape, speed: Speed, *, backward: bool) -> float:
    """Of attention that no fused kernel takes: plain products, and scores in memory."""
    moved = SCORES_MOVED[backward] * shape.scores * 4.0
    products = (2.0 if backward else 1.0) * 4.0 * shape.scores * shape.width
    return products / speed.matrix + moved / speed.bandwidth
