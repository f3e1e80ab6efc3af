"""The roofline: is an operation bound by arithmetic or by memory?

An operation does F floating-point operations on operands and results of B bytes, each of which has
to cross the memory bus at least once. F / B is its arithmetic intensity. A device has a peak, in
FLOP/s, and a memory bandwidth, in bytes/s. The arithmetic units and the bus work at the same time,
so the slower of the two decides. Drawn over the intensity, the best possible rate is a roof: it
rises while memory decides and is flat from the ridge on (Williams and others, 2009).

What is written to memory only to be read again at once counts as traffic. That is why attention in
one fused kernel has an intensity that attention in three kernels cannot reach.

Claim: on an H100-80GB in bf16 the ridge is at 295 FLOPs per byte. A matmul of one token is bound by
memory, one of 1,024 tokens by arithmetic; fused attention over 4,096 tokens is bound by arithmetic,
in three kernels by memory. stepladder.bench.device.roofline.Roofs draws the same roof.

Predict: 256 tokens are multiplied with an 8192 x 8192 weight in bf16. Which share of an H100's peak
can that reach at most? [share of peak; operation = matmul, 256 tokens]

Often wrong:
- the result's bytes are left out
- elements are counted instead of bytes
- fused attention is charged for its scores
- the times of arithmetic and traffic are added up
"""

from __future__ import annotations

from typing import Any

from stepladder.hardware import find_device

DEVICE, BF16 = "H100-80GB", 2  # bytes of a number


def matmul_cost(m: int, k: int, n: int, width: int) -> tuple[float, float]:
    """FLOPs and bytes of an (m, k) matrix times a (k, n) matrix; `width` bytes a number."""
    flops = 2.0 * m * k * n
    # >>> Bytes read and written, each operand and the result once.
    # ??? Three matrices cross the memory bus. Which shapes do they have?
    # ??? A number in float32 has 4 bytes, in bf16 2: where does that come in?
    moved = (m * k + k * n + m * n) * width
    # <<< moved = ...
    return flops, moved


def add_cost(numel: int, width: int) -> tuple[float, float]:
    """FLOPs and bytes of a sum of two tensors."""
    return float(numel), 3.0 * numel * width


def attention_cost(length: int, head: int, width: int, *, fused: bool) -> tuple[float, float]:
    """FLOPs (of the two products) and bytes of softmax(q kᵀ) v for one head."""
    flops = 4.0 * length**2 * head
    # >>> Bytes read and written: one fused kernel, or a kernel each for product, softmax, product.
    # ??? q, k, v and the result are needed in any case: what shape has each?
    # ??? Without fusion the (length, length) scores are the first kernel's result, the second's
    # ???   operand and result, and the third's operand.
    # ??? In a fused kernel the scores exist only in registers and shared memory.
    passes = 0 if fused else 4
    moved = (4.0 * length * head + passes * length**2) * width
    # <<< moved = ...
    return flops, moved


def ridge(peak: float, bandwidth: float) -> float:
    """The intensity from which on arithmetic decides."""
    # >>> The intensity at which arithmetic and traffic take equally long.
    # ??? How many FLOPs can the device do while one byte arrives?
    # ??? FLOP/s and bytes/s: which quotient has the unit FLOPs per byte?
    return peak / bandwidth
    # <<< return ...  # type: ignore[return-value]


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The best possible rate in FLOP/s of an operation of this intensity."""
    # >>> The roof over this intensity.
    # ??? At 10 FLOPs per byte and 1e12 bytes/s, how many FLOP/s can memory feed?
    # ??? Two limits hold at once, and they do not add up: arithmetic and traffic overlap.
    return min(peak, intensity * bandwidth)
    # <<< return ...  # type: ignore[return-value]


def costs() -> dict[str, tuple[float, float]]:
    """FLOPs and bytes of some operations of a transformer in bf16."""
    tokens = (1, 16, 64, 256, 1024, 4096)
    found = {
        f"matmul, {count} token{'s' * (count > 1)}": matmul_cost(count, 8192, 8192, BF16)
        for count in tokens
    }
    found["add"] = add_cost(2**24, BF16)
    found["attention, three kernels"] = attention_cost(4096, 128, BF16, fused=False)
    found["attention, fused"] = attention_cost(4096, 128, BF16, fused=True)
    return found


def measure() -> list[dict[str, Any]]:
    device = find_device(DEVICE)
    peak, bandwidth = device.peak("bf16"), device.bandwidth_bytes_per_second
    assert peak is not None and bandwidth is not None
    rows = []
    for operation, (flops, moved) in sorted(costs().items(), key=lambda one: one[1][0] / one[1][1]):
        rate = attainable(flops / moved, peak, bandwidth)
        row = {"operation": operation, "FLOPs per byte": flops / moved}
        row |= {"attainable TFLOP/s": rate / 1e12, "share of peak": rate / peak}
        rows.append({**row, "bound by": "arithmetic" if rate == peak else "memory"})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
