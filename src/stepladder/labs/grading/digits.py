"""Two numbers with as many digits as tell them apart."""

from __future__ import annotations

import math

FEWEST, MOST = 6, 17  # significant digits: as people write them, as a float has them
PLAIN = range(-5, 15)  # powers of ten that are written without an exponent


def apart(found: float, wanted: float) -> tuple[str, str]:
    """Both numbers with the same decimals, as few as let them differ.

    >>> apart(0.6931471, 0.6931472)
    ('0.6931471', '0.6931472')
    >>> apart(8.0, 2.0)
    ('8', '2')
    """
    if not (math.isfinite(found) and math.isfinite(wanted)):
        return f"{found:.6g}", f"{wanted:.6g}"
    for digits in range(FEWEST, MOST + 1):
        if f"{found:.{digits}g}" != f"{wanted:.{digits}g}":
            break
    size = max(abs(found), abs(wanted))
    power = math.floor(math.log10(size)) if size else 0
    if power not in PLAIN:
        return f"{found:.{digits - 1}e}", f"{wanted:.{digits - 1}e}"
    decimals = max(0, digits - 1 - power)
    mine, theirs = f"{found:.{decimals}f}", f"{wanted:.{decimals}f}"
    while decimals and mine[-1] == theirs[-1] == "0":
        mine, theirs, decimals = mine[:-1], theirs[:-1], decimals - 1
    return mine.rstrip("."), theirs.rstrip(".")
