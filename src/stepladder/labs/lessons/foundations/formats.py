"""Floating-point formats, bit by bit.

A float is a sign, an exponent of e bits and a mantissa of m bits: ± 1.mantissa × 2^(exponent -
bias) with bias 2^(e-1) - 1. The exponent bits buy range, the mantissa bits buy spacing: between 2^k
and 2^(k+1) lie 2^m numbers, 2^(k-m) apart. Exponent zero is set apart for numbers without the
leading 1 (subnormal): below the smallest normal number the spacing stays what it is there, down to
zero. Rounding is to the nearest number, and from the middle to the one whose last bit is 0.

int8 has no exponent of its own: a whole tensor shares one scale.

Claim: five lines of arithmetic round as torch does for every one of float16's and bfloat16's 65,536
numbers and every neighbour's middle, fp8 included. bfloat16 has the range of float32 with 8 bits of
accuracy; float16 has 11 bits and ends at 65,504; tf32 is bfloat16's range with float16's accuracy.
(torch.finfo knows all this.)

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
        # >>> All mantissa bits are 1, and the exponent is 2^(exponent_bits - 1) - 1.
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
    # >>> 2 to the power of (exponent - mantissa bits); exponents end at the smallest one.
    return 2.0 ** (max(exponent, form.smallest_exponent) - form.mantissa_bits)
    # <<< return 2.0**exponent


def rounded(number: float, form: Format) -> float:
    """The nearest number that the format has; infinity beyond the largest."""
    step = spacing(number, form)
    # >>> How many steps is the number, to the nearest? (Python's round takes the even one of two.)
    nearest = round(number / step) * step
    # <<< nearest = number
    return nearest if abs(nearest) <= form.largest else math.copysign(math.inf, number)


def as_int8(values: Tensor, scale: float) -> Tensor:
    """The values as 8-bit integers times one scale, as floats again."""
    # >>> Divide, round, keep within -128 and 127 (clamp), multiply.
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
