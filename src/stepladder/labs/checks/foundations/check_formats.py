"""Checks of formats: every number of the small ones, and the middle between neighbours."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "numbers are cut off instead of rounded to the nearest",
        "round(number / step)",
        "math.trunc(number / step)",
        "cut off, not rounded to the nearest",
    ),
    Mistake(
        "the middle is always rounded up",
        "round(number / step)",
        "math.floor(number / step + 0.5)",
        "just in the middle is rounded to the even neighbour",
    ),
    Mistake(
        "small numbers are spaced as if they were normal",
        "max(exponent, form.smallest_exponent)",
        "exponent",
        "the spacing stays what it is there",
    ),
    Mistake(
        "int8 runs over its end",
        ".round().clamp(-128, 127)",
        ".round()",
        "int8 ends at 127",
    ),
)
TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}


def every_number(dtype: torch.dtype) -> Tensor:
    """Every finite number of a format, in order."""
    bits = 8 * dtype.itemsize
    whole = torch.arange(2**bits).to(torch.uint8 if bits == 8 else torch.uint16)
    numbers = whole.view(dtype).double()
    return numbers[numbers.isfinite()].unique()


def check_range(lesson: ModuleType) -> None:
    """The largest and smallest numbers are those of torch.finfo."""
    for name, dtype in {**TYPES, "fp32": torch.float32}.items():
        form, known = lesson.FORMATS[name], torch.finfo(dtype)
        expect_close(form.largest, known.max, f"the largest {name}", rtol=0)
        expect_close(lesson.spacing(1.0, form), known.eps, f"the spacing after 1 in {name}", rtol=0)
    expect_close(lesson.spacing(1.0, lesson.FORMATS["tf32"]), 2.0**-10, "tf32's spacing", rtol=0)


def check_numbers_stay(lesson: ModuleType) -> None:
    """A number that a format has stays as it is."""
    for name, dtype in TYPES.items():
        for number in every_number(dtype)[:: 1 if dtype.itemsize == 1 else 97].tolist():
            found = written(lesson.rounded(number, lesson.FORMATS[name]), "rounded")
            expect(found == number, f"{name} has {number}, and you round it to {found}.")


def check_rounding(lesson: ModuleType) -> None:
    """Of two neighbours the nearer is taken, from the middle the even one, as torch does."""
    for name, dtype in TYPES.items():
        numbers = every_number(dtype)[:: 1 if dtype.itemsize == 1 else 31].contiguous()
        if name == "fp8 e4m3":
            numbers = numbers[numbers.abs() < 440]  # torch's e4m3 has no infinity to round to
        for share in (0.25, 0.5, 0.75):
            around = every_number(dtype)
            up = around[torch.searchsorted(around, numbers, right=True).clamp(max=len(around) - 1)]
            between = numbers + share * (up - numbers)
            # Through float32, which holds every such middle exactly.
            theirs = between.float().to(dtype).double()
            for number, wanted in zip(between.tolist(), theirs.tolist()):
                compare(lesson.rounded(number, lesson.FORMATS[name]), number, wanted, name, share)


def compare(found: float, number: float, wanted: float, name: str, share: float) -> None:
    if found == wanted or (math.isinf(found) and math.isnan(wanted)):
        return
    about = f"{number:.9g} in {name}: {found:.9g}, torch has {wanted:.9g}."
    if found == number:
        small = abs(number) < {"bf16": 2.0**-126, "fp8 e4m3": 2.0**-6}.get(name, 2.0**-14)
        why = "below the smallest normal number the spacing stays what it is there."
        expect(False, f"{about} {'Too finely spaced: ' + why if small else 'Not rounded at all.'}")
    if share == 0.5:
        expect(
            abs(found) < abs(number) and abs(wanted) < abs(number),
            f"{about} A number just in the middle is rounded to the even neighbour.",
        )
    closer = abs(found - number) <= abs(wanted - number)
    expect(closer, f"{about} It was cut off, not rounded to the nearest.")
    expect(False, about)


def check_overflow(lesson: ModuleType) -> None:
    """Beyond the largest number is infinity, with the number's sign."""
    fp16 = lesson.FORMATS["fp16"]
    expect(lesson.rounded(65519.0, fp16) == 65504, "65,519 rounds to 65,504 in fp16.")
    expect(lesson.rounded(-65520.0, fp16) == -math.inf, "-65,520 is -infinity in fp16.")


def check_int8(lesson: ModuleType) -> None:
    """int8 with one scale gives what torch.fake_quantize_per_tensor_affine gives."""
    values = torch.linspace(-5, 5, 1001)
    theirs = torch.fake_quantize_per_tensor_affine(values, 4 / 127, 0, -128, 127)
    found = lesson.as_int8(values, 4 / 127)
    expect(found is not values, "as_int8 is not written yet: it gave its values back.")
    ends = f"5 became {found.max().item():.3g} with a scale of 4/127: int8 ends at 127 (clamp)."
    expect(found.max() <= 4.001, ends)
    expect_close(found, theirs, "the int8 values", rtol=1e-6)
