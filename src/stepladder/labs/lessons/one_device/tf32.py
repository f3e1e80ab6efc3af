"""TF32: float32 products on fewer bits, what they cost and how to get the bits back.

Matrix units multiply short mantissas. TF32 reads float32 numbers, rounds their 23 mantissa bits to
10 and multiplies those, up to eight times as fast, adding up in float32. Storage and range stay
float32's: only products are rounded. torch switches it with one setting for the whole process
(torch.set_float32_matmul_precision), so a library should put it back.

Rounding to 10 bits is integer arithmetic on the number's bits: a carry goes where it should by
itself. What rounding lost is itself a float32 number, and can be rounded again: so a factor becomes
a high and a low part. Three products of such parts give back nearly all of float32 and still use
the fast units.

Claim: three TF32 products are right to 3e-7 of what their numbers could add up to, hundreds of
times better than one. On a GPU torch's own TF32 gives the same numbers as yours.

Predict: By what share of what its numbers could add up to is one TF32 product off?
[relative error; product = tf32]

Often wrong:
- bits are cut off instead of rounded
- ties are always rounded away from zero
- the low parts are multiplied by each other only
- the setting is left on
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

DROPPED = 13  # of float32's 23 mantissa bits


def to_tf32(x: Tensor) -> Tensor:
    """Float32 numbers rounded to 10 mantissa bits, still stored as float32."""
    bits = x.contiguous().view(torch.int32)
    # >>> Round to the nearest number with 10 mantissa bits; of two equally near, to the even one.
    # ??? Read as an integer, a float's last 13 bits are what has to go. Clearing them cuts. What
    # ???   must be added before, so that it rounds?
    # ??? Half of the last kept bit's place sends ties up. To send them to the even neighbour, a
    # ???   number that is even already needs a little less than an odd one.
    # ??? Shifting right by DROPPED leaves what is kept; its last bit says odd or even.
    odd = (bits >> DROPPED) & 1
    bits = (bits + odd + (2 ** (DROPPED - 1) - 1)) >> DROPPED << DROPPED
    # <<< bits = bits
    return bits.view(torch.float32)


def product(a: Tensor, b: Tensor) -> Tensor:
    """One product as a TF32 unit makes it: rounded factors, sums in float32."""
    return to_tf32(a) @ to_tf32(b)


def three_products(a: Tensor, b: Tensor) -> Tensor:
    """A product with float32's accuracy out of three TF32 products."""
    # >>> A product with float32's accuracy out of products of rounded factors.
    # ??? x less what rounding made of it: how large is that, compared with x? Can it be rounded
    # ???   again?
    # ??? With two parts to each factor there are four products. One is too small to matter: which?
    # ??? Small numbers are lost when they meet a large one too early.
    high_a, high_b = to_tf32(a), to_tf32(b)
    low_a, low_b = a - high_a, b - high_b
    return product(low_a, high_b) + product(high_a, low_b) + product(high_a, high_b)
    # <<< return product(a, b)


@contextmanager
def fast_products() -> Iterator[None]:
    """Within it, torch may use TF32; afterwards everything is as it was."""
    # >>> torch may use TF32 inside, and all is as before outside, also after an error.
    # ??? torch.get_float32_matmul_precision says what is set; "high" is what allows TF32.
    # ??? What runs after a `yield` when the block has raised?
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
    # <<< yield


def error(found: Tensor, a: Tensor, b: Tensor) -> float:
    """Of a product, relative to what its numbers could have added up to."""
    exact = a.double() @ b.double()
    return ((found.double() - exact).abs() / (a.double().abs() @ b.double().abs())).max().item()


def measure() -> list[dict[str, object]]:
    make = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 256, generator=make), torch.randn(256, 64, generator=make)
    found = {
        "fp32": a @ b,
        "bf16": (a.bfloat16() @ b.bfloat16()).float(),
        "tf32": product(a, b),
        "three tf32": three_products(a, b),
    }
    if torch.cuda.is_available():
        with fast_products():
            found["tf32 on this GPU"] = (a.cuda() @ b.cuda()).cpu()
    return [{"product": name, "relative error": error(c, a, b)} for name, c in found.items()]


if __name__ == "__main__":
    for row in measure():
        print(row)
