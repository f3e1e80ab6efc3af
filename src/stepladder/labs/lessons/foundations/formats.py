"""Floating-point formats, bit by bit.

A float is a sign, an exponent of e bits and a mantissa of m bits: ± 1.mantissa × 2^(exponent -
bias) with bias 2^(e-1) - 1. The exponent bits buy range, the mantissa bits buy spacing: between one
power of two and the next lie as many numbers as the mantissa has patterns, evenly. Exponent zero is
set apart for numbers without the leading 1 (subnormal): below the smallest normal number the
spacing stays what it is there, down to zero. Rounding is to the nearest number, and from the middle
to the one whose last bit is 0.

int8 has no exponent of its own: a whole tensor shares one scale.

Claim: five lines of arithmetic round as torch does for every one of float16's and bfloat16's 65,536
numbers and every neighbour's middle, fp8 included. bfloat16 has the range of float32 with 8 bits of
accuracy; float16 has 11 bits and ends at 65,504; tf32 is bfloat16's range with float16's accuracy.
(torch.finfo knows all this.)

Predict: By what share of itself is 0.1 wrong in fp16? [error of a tenth; format = fp16]

Often wrong:
- numbers are cut off instead of rounded to the nearest
- the middle is always rounded up
- small numbers are spaced as if they were normal
- int8 runs over its end
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int
    own_largest: float | None = None  # where it is not the rule's: fp8 e4m3 has no infinity

    @property
    def smallest_exponent(self) -> int:
        """Of normal numbers."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def largest(self) -> float:
        # >>> The largest number: all mantissa bits are 1, in the topmost exponent that is not
        # >>> infinity's.
        # ??? In binary, 1.1 is 1.5 and 1.11 is 1.75. How much is missing to 2 each time, and with m
        # ???   ones?
        # ??? What stands here first has the right exponent and a mantissa of 1.
        largest = (2 - 2.0**-self.mantissa_bits) * 2.0 ** (2 ** (self.exponent_bits - 1) - 1)
        # <<< largest = 2.0 ** (2 ** (self.exponent_bits - 1) - 1)
        return self.own_largest or largest


FORMATS = {
    "fp32": Format(8, 23),
    "tf32": Format(8, 10),
    "bf16": Format(8, 7),
    "fp16": Format(5, 10),
    "fp8 e5m2": Format(5, 2),
    "fp8 e4m3": Format(4, 3, own_largest=448.0),
}


def spacing(number: float, form: Format) -> float:
    """How far apart the format's numbers are around this one."""
    exponent = math.frexp(number)[1] - 1  # 2^exponent <= |number| < 2^(exponent + 1)
    # >>> The step from one number of the format to the next, here.
    # ??? How many steps does a mantissa of m bits make on the way from 2^k to 2^(k+1)? How long is
    # ???   each?
    # ??? Below the smallest normal number the spacing no longer shrinks: which exponent counts
    # ???   there?
    # ??? Two numbers to try: bf16 at 1.0 has steps of 1/128, fp16 at 1e-6 has steps of 2^-24.
    return 2.0 ** (max(exponent, form.smallest_exponent) - form.mantissa_bits)
    # <<< return 2.0**exponent


def rounded(number: float, form: Format) -> float:
    """The nearest number that the format has; infinity beyond the largest."""
    step = spacing(number, form)
    # >>> The multiple of the step that is nearest; of two that are equally near, the even one.
    # ??? How many steps long is the number? That is hardly ever whole.
    # ??? Ask Python for round(0.5), round(1.5) and round(2.5).
    nearest = round(number / step) * step
    # <<< nearest = number
    return nearest if abs(nearest) <= form.largest else math.copysign(math.inf, number)


def as_int8(values: Tensor, scale: float) -> Tensor:
    """The values as 8-bit integers times one scale, as floats again."""
    # >>> The values on the grid of whole multiples of the scale that 8 bits can count, as floats.
    # ??? Which whole numbers do 8 bits hold, with a sign?
    # ??? Beyond the last of them a value must stay at the last one, not begin again at the other
    # ???   end.
    # ??? Tensor.round and Tensor.clamp do two of the four steps.
    return (values / scale).round().clamp(-128, 127) * scale
    # <<< return values


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "format": name,
            "bits": 1 + form.exponent_bits + form.mantissa_bits,
            "largest": form.largest,
            "smallest normal": 2.0**form.smallest_exponent,
            "spacing at 1": spacing(1.0, form),
            "a tenth": f"{rounded(0.1, form):.8f}",
            "error of a tenth": abs(rounded(0.1, form) / 0.1 - 1),
            "100,000": rounded(1e5, form),
        }
        for name, form in FORMATS.items()
    ]
    tenth = as_int8(torch.tensor(0.1), scale=1 / 127).item()
    error = abs(tenth / 0.1 - 1)
    shared = {"format": "int8, to 1", "bits": 8, "largest": 1.0, "spacing at 1": 1 / 127}
    return [*rows, {**shared, "a tenth": f"{tenth:.8f}", "error of a tenth": error}]


if __name__ == "__main__":
    for row in measure():
        print(row)
