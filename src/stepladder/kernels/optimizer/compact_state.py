"""Masters and moments of Adam in fewer bytes: the formats, in torch.

[Note: a master in two pieces] A bf16 weight is its float32 master, rounded to nearest with ties to
even. The master's low 16 bits say what rounding did, so they are kept beside the weight: if they
are more than half, it was rounded up. Exactly half leaves open which even weight it came from; one
bit decides, and stands where a bit is always zero: in the sign of the second moment. The pair is
the master, to the bit.

Where fewer bits are kept, they are rounded stochastically: up as often as the rest is large. The
random bits follow from the run's seed, the parameter, the step and the element's place in the
whole parameter, so a resumed run and one on other ranks draws the same.

At 8 bits, moments have a scale for each 64 elements and are companded: small ones get more
codes than large ones. See FlashOptim (arXiv:2602.23349) for x / (1 + |x|) and the square root.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.plan.shared_constants import MOMENT_GROUP as GROUP

MASK = 0xFFFFFFFF


def split_master(master: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weight, its remainder, and whether the weight was rounded up from exactly half."""
    bits = master.view(torch.int32)
    weight, low = master.bfloat16(), bits & 0xFFFF
    raised = weight.view(torch.int16).int() - (bits >> 16) & 0xFFFF
    return weight, low.short(), (low == 0x8000) & (raised == 1)


def join_master(weight: Tensor, remainder: Tensor, raised: Tensor) -> Tensor:
    """The float32 master of a weight and its remainder."""
    low = remainder.int() & 0xFFFF
    high = weight.view(torch.int16).int() - (low + raised > 0x8000).int()
    return (high << 16 | low).view(torch.float32)


def split_master24(master: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weight and 8 bits more; half is rounded away from zero, so they need no other bit.

    Args:
        noise: random bits, of which 8 are used to round; None rounds to nearest.
    """
    bits = master.view(torch.int32) + (0x80 if noise is None else (noise & 0xFF).int())
    weight = torch.where(master.isnan(), 0x7FC0, bits + 0x8000 >> 16).short()
    return weight.view(torch.bfloat16), (bits >> 8 & 0xFF).to(torch.uint8)


def join_master24(weight: Tensor, remainder: Tensor) -> Tensor:
    low = remainder.int()
    high = weight.view(torch.int16).int() - (low >= 0x80).int()
    return (high << 16 | low << 8).view(torch.float32)


def round_to_bfloat16(value: Tensor, noise: Tensor) -> Tensor:
    """Round stochastically; `noise` is 16 random bits."""
    return ((value.view(torch.int32) + noise.int()) >> 16).short().view(torch.bfloat16)


def random_bits(key: int, step: Tensor, start: int, like: Tensor) -> Tensor:
    """32 random bits for each element of a tensor whose first is number `start` of a parameter."""
    places = torch.arange(start, start + like.numel(), device=like.device) & MASK
    counted = step.to(like.device).long()
    first = scramble(counted, torch.tensor(key), torch.tensor(0x9E3779B9))
    second = scramble(first, torch.tensor(key ^ 0x85EBCA6B), counted)
    return scramble(places, first, second).view(like.shape)


def scramble(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A permutation of 32 bits: lowbias32 with a second key between its multiplications."""
    x = x ^ first.to(x.device)
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    x = (x ^ x >> 15 ^ second.to(x.device)) * 0x846CA68B & MASK
    return x ^ x >> 16


def grouped(values: Tensor) -> Tensor:
    """Rows of a group each, the last one filled with zeros."""
    flat = values.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP)


def like(rows: Tensor, shaped: Tensor) -> Tensor:
    return rows.reshape(-1)[: shaped.numel()].view(shaped.shape)


def compand_mean(mean: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes from −127 to 127 and a scale for each group; without `noise` rounded to nearest."""
    rows = grouped(mean)
    scale = rows.abs().amax(1)
    part = rows / torch.where(scale > 0, scale, 1.0)[:, None]
    code = like(254 * part / (1 + part.abs()), mean)
    code = code.round() if noise is None else (code + (noise >> 8 & 0xFFF) / 4096).floor()
    return code.clamp(-127, 127).to(torch.int8), scale


def expand_mean(code: Tensor, scale: Tensor) -> Tensor:
    rows = grouped(code.float())
    return like(scale[:, None] * (rows / (254 - rows.abs())), code)


def compand_square(square: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes from 1 to 255 and a scale for each group; none is 0, by which nothing is divided."""
    rows = grouped(square.sqrt())
    scale = rows.amax(1)
    code = like(255 / torch.where(scale > 0, scale, 1.0)[:, None] * rows, square)
    code = code.round() if noise is None else (code + (noise >> 20) / 4096).floor()
    return code.clamp(1, 255).to(torch.uint8), scale


def expand_square(code: Tensor, scale: Tensor) -> Tensor:
    return like(scale[:, None] * (grouped(code.float()) / 255), code).square()
