"""The lab 'formats': all the arithmetic in the class, integers instead of floats."""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int
    own_largest: float | None = None

    @property
    def bias(self):
        return (1 << self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self):
        return 1 - self.bias

    @property
    def largest(self):
        ones = (1 << self.mantissa_bits + 1) - 1
        return self.own_largest or math.ldexp(ones, self.bias - self.mantissa_bits)

    def unit(self, number):
        exponent = self.smallest_exponent
        while abs(Fraction(number)) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        return math.ldexp(1.0, exponent - self.mantissa_bits)

    def near(self, number):
        unit = Fraction(self.unit(number))
        found = float(round(Fraction(number) / unit) * unit)
        return found if abs(found) <= self.largest else math.copysign(math.inf, number)


def spacing(number, form):
    return form.unit(number)


def rounded(number, form):
    return form.near(number)


def as_int8(values, scale):
    steps = values.div(scale).round()
    return steps.minimum(steps.new_tensor(127)).maximum(steps.new_tensor(-128)) * scale
