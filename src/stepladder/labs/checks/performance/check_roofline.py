"""Checks of the roofline: bytes of real tensors, then the roof that the benchmark draws."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from stepladder.bench.device.roofline import Roofs
from stepladder.hardware import find_device
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "the result's bytes are left out",
        "(m * k + k * n + m * n) * width",
        "(m * k + k * n) * width",
        "the result is written to memory, too",
    ),
    Mistake(
        "elements are counted instead of bytes",
        "(m * k + k * n + m * n) * width",
        "m * k + k * n + m * n",
        "that counts numbers, not bytes",
    ),
    Mistake(
        "fused attention is charged for its scores",
        "passes = 0 if fused else 4",
        "passes = 4",
        "a fused kernel never writes the scores to memory",
    ),
    Mistake(
        "the times of arithmetic and traffic are added up",
        "return min(peak, intensity * bandwidth)",
        "return 1 / (1 / peak + 1 / (intensity * bandwidth))",
        "arithmetic and traffic go on at the same time",
    ),
)


def check_the_bytes_of_a_matmul(lesson: ModuleType) -> None:
    """A matmul moves the bytes of its two operands and of its result."""
    for kind in (torch.float32, torch.bfloat16):
        left, right = torch.zeros(3, 5, dtype=kind), torch.zeros(5, 7, dtype=kind)
        out, size = left @ right, left.element_size()
        flops, moved = lesson.matmul_cost(3, 5, 7, size)
        moved = written(moved, "matmul_cost")
        about = f"(3, 5) @ (5, 7) in numbers of {size} bytes"
        operands = left.nbytes + right.nbytes
        expect(
            moved != operands, f"{about}: {moved:g} bytes; the result is written to memory, too."
        )
        expect(
            not is_times(moved, operands + out.nbytes, 1 / size),
            f"{about}: {moved:g}; that counts numbers, not bytes.",
        )
        expect_close(moved, operands + out.nbytes, f"bytes of {about}", rtol=0)
        expect_close(flops, 2 * 3 * 5 * 7, f"FLOPs of {about}", rtol=0)


def check_the_bytes_of_attention(lesson: ModuleType) -> None:
    """Three kernels write and read the scores; a fused one does not."""
    q, k, v = (torch.zeros(64, 16, dtype=torch.bfloat16) for _ in range(3))
    scores = q @ k.mT
    shares = scores.softmax(-1)
    out = shares @ v
    kernels = ((q, k, scores), (scores, shares), (shares, v, out))
    apart = sum(size(*kernel) for kernel in kernels)
    fused = written(lesson.attention_cost(64, 16, 2, fused=True)[1], "attention_cost")
    three = written(lesson.attention_cost(64, 16, 2, fused=False)[1], "attention_cost")
    expect(
        fused < apart,
        f"fused attention over 64 tokens moves {fused:g} bytes by your count: a "
        "fused kernel never writes the scores to memory.",
    )
    expect_close(fused, size(q, k, v, out), "bytes of fused attention", rtol=0)
    expect(
        three != fused + 2 * scores.nbytes,
        "three kernels: the scores cross the bus four "
        "times, not twice; softmax reads and writes them, too.",
    )
    expect_close(three, apart, "bytes of attention in three kernels", rtol=0)


def size(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def check_the_roof(lesson: ModuleType) -> None:
    """The ridge and the roof are those of stepladder's own roofline."""
    for name in ("A100-80GB", "H100-80GB"):
        device = find_device(name)
        peak, bandwidth = device.peak("bf16"), device.bandwidth_bytes_per_second
        assert peak is not None and bandwidth is not None
        roofs = Roofs({"bf16": peak}, {"bf16": peak}, bandwidth, bandwidth, 0.0)
        corner = written(lesson.ridge(peak, bandwidth), "ridge")
        expect_close(corner, roofs.ridge("bf16"), f"the ridge of an {name} in bf16")
        for intensity in (1.0, 0.5 * corner, corner, 4 * corner):
            found = written(lesson.attainable(intensity, peak, bandwidth), "attainable")
            wanted = roofs.roof("bf16", intensity)
            both = 1 / (1 / peak + 1 / (intensity * bandwidth))
            expect(
                not is_times(found, both, 1),
                f"at {intensity:.3g} FLOPs per byte you allow "
                f"{found / wanted:.0%} of the roof: arithmetic and traffic go on at the same "
                "time, the slower one decides.",
            )
            expect_close(found, wanted, f"FLOP/s of an {name} at {intensity:.3g} FLOPs per byte")


def check_what_bounds_each_operation(lesson: ModuleType) -> None:
    """Few tokens and unfused attention are bound by memory, many tokens by arithmetic."""
    rows = {row["operation"]: row for row in lesson.measure()}
    bound = {name: row["bound by"] for name, row in rows.items()}
    for name in ("matmul, 1 token", "add", "attention, three kernels"):
        expect(bound[name] == "memory", f"{name}: bound by memory, not by arithmetic.")
    for name in ("matmul, 1024 tokens", "attention, fused"):
        expect(bound[name] == "arithmetic", f"{name}: bound by arithmetic, not by memory.")
