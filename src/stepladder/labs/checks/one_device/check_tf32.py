"""Checks of TF32: rounding bit by bit, errors by their bounds, the setting put back."""

from __future__ import annotations

from types import ModuleType

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "bits are cut off instead of rounded",
        "(bits + odd + (2 ** (DROPPED - 1) - 1)) >> DROPPED",
        "bits >> DROPPED",
        "bits were cut off",
    ),
    Mistake(
        "ties are always rounded away from zero",
        "bits + odd + (2 ** (DROPPED - 1) - 1)",
        "bits + 2 ** (DROPPED - 1)",
        "just in the middle goes to the even neighbour",
    ),
    Mistake(
        "the low parts are multiplied by each other only",
        "product(low_a, high_b) + product(high_a, low_b) + ",
        "product(low_a, low_b) + ",
        "low·low is smaller than what is missing",
    ),
    Mistake(
        "the setting is left on",
        "        torch.set_float32_matmul_precision(before)\n",
        "        pass\n",
        "the setting was left at 'high'",
    ),
)


def check_rounding(lesson: ModuleType) -> None:
    """Numbers are rounded to 10 bits, to the nearest, and from the middle to the even one."""
    place = 2.0**-10
    kept = torch.tensor([1.0, 1 + place, -3.5, 0.0, 2.0**-100])
    expect_close(lesson.to_tf32(kept), kept, "numbers that TF32 has", rtol=0)
    found = lesson.to_tf32(torch.tensor([1 + 0.75 * place]))
    expect(found.item() != 1 + 0.75 * place, "nothing was rounded: clear the last 13 bits.")
    expect(found.item() != 1.0, "1 + 3/4 of a place became 1: bits were cut off, add half first.")
    expect_close(found, [1 + place], "1 + 3/4 of a place", rtol=0)
    middle = torch.tensor([1 + 0.5 * place, 1 + 1.5 * place, -1 - 0.5 * place])
    found = lesson.to_tf32(middle)
    expect(
        found[0] == 1, "1 + half a place went up: just in the middle goes to the even neighbour."
    )
    expect_close(found, [1, 1 + 2 * place, -1], "numbers in the middle", rtol=0)
    many = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    worst = ((lesson.to_tf32(many) - many) / many).abs().max().item()
    expect(worst <= 2.0**-11, f"off by {worst:.2g}; rounding to 10 bits is off by 2^-11 at most.")


def check_three_products(lesson: ModuleType) -> None:
    """Three products are hundreds of times nearer than one."""
    make = torch.Generator().manual_seed(0)
    a, b = torch.randn(32, 64, generator=make), torch.randn(64, 32, generator=make)
    one, three = (lesson.error(f(a, b), a, b) for f in (lesson.product, lesson.three_products))
    expect(1e-5 < one < 2.0**-10, f"one product is off by {one:.2g}, expected about 1e-4.")
    expect(three < one / 2, f"three products are off by {three:.2g}, no better than one: low·low "
           "is smaller than what is missing, use high·low and low·high.")  # fmt: skip
    expect(three < 1e-6, f"three products are off by {three:.2g}, expected under 1e-6.")


def check_the_setting(lesson: ModuleType) -> None:
    """torch.set_float32_matmul_precision is "high" inside, and as before outside."""
    torch.set_float32_matmul_precision("highest")
    with lesson.fast_products():
        inside = torch.get_float32_matmul_precision()
    expect(inside == "high", f"inside it is '{inside}', not 'high'.")
    after = torch.get_float32_matmul_precision()
    expect(after == "highest", f"the setting was left at '{after}', and the process has it now.")
    try:
        with lesson.fast_products():
            raise KeyError
    except KeyError:
        after = torch.get_float32_matmul_precision()
    expect(after == "highest", f"after an error the setting was left at '{after}': try, finally.")


def check_a_gpu_gives_the_same(lesson: ModuleType) -> None:
    """A GPU's TF32 has the numbers of one rounded product (where there is a GPU)."""
    rows = {row["product"]: row["relative error"] for row in lesson.measure()}
    expect(rows["fp32"] < rows["three tf32"] * 10, "fp32 should be about as near as three.")
    expect(rows["bf16"] > 2 * rows["tf32"], "bf16 has 3 bits fewer and should be less near.")
    real = rows.get("tf32 on this GPU", rows["tf32"])
    expect_close(real, rows["tf32"], "the error of TF32 on this GPU", rtol=0.5)
