"""Pictures and texts that a training loop keeps: small enough to lie in a journal's line.

A picture becomes a PNG file of at most 320 pixels a side; several become one, side by side.
"""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from stepladder.errors import RecordError
from stepladder.record.journal_writer import JournalWriter, NullJournal

MAX_LETTERS = 20_000
MAX_SIDE = 320  # pixels
MAX_PICTURES = 16  # of a batch
CHANNELS = (1, 3)
GAP = 2  # pixels between pictures


def write_sample(journal: JournalWriter | None, name: str, step: int, sample: Any) -> None:
    """Write a sample where this rank writes."""
    if journal is None:
        problem = "the run has no journal to keep it in"
        raise RecordError(f"log.{name}", problem, "Log it inside 'with run.open_journal(folder):'.")
    if not isinstance(journal, NullJournal):
        journal.write("sample", step=step, name=name, **read_sample(name, sample))


def read_sample(name: str, sample: Any) -> dict[str, str]:
    """The journal's words for a text, a picture or a batch of pictures."""
    if isinstance(sample, str):
        cut = sample[:MAX_LETTERS]
        return {"text": cut if cut == sample else f"{cut} …"}
    return {"png": b64encode(to_png(as_picture(name, sample))).decode()}


def as_picture(name: str, sample: Any) -> Tensor:
    """One picture of bytes, channels first."""
    try:
        tensor = torch.as_tensor(sample).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        problem = f"a {type(sample).__name__} is neither a text nor a picture"
        raise RecordError(f"log.{name}", problem, "Give a string, or a tensor of pixels.") from None
    pictures = batched(tensor)
    if pictures is None:
        problem = f"a tensor of shape {tuple(tensor.shape)} is no picture"
        remedy = "Shape it (height, width), (channels, height, width) or a batch of those."
        raise RecordError(f"log.{name}", problem, remedy)
    if not pictures.double().isfinite().all():
        raise RecordError(
            f"log.{name}", "some pixels are NaN or Inf", "Use torch.nan_to_num before."
        )
    return shrink(side_by_side(as_bytes(pictures)))


def batched(tensor: Tensor) -> Tensor | None:
    """Pictures as (number, channels, height, width); None where it is none."""
    if tensor.dim() == 2:
        tensor = tensor[None]
    if tensor.dim() == 3:
        last = tensor.shape[0] not in CHANNELS and tensor.shape[-1] in CHANNELS
        tensor = (tensor.permute(2, 0, 1) if last else tensor)[None]
    fits = tensor.dim() == 4 and tensor.shape[1] in CHANNELS and tensor.numel()
    return tensor[:MAX_PICTURES] if fits and not tensor.is_complex() else None


def as_bytes(pictures: Tensor) -> Tensor:
    """Bytes as they are; numbers from 0 to 1, or else from the least to the most, as brightness."""
    if pictures.dtype == torch.uint8:
        return pictures
    numbers = pictures.double()
    low, high = numbers.min(), numbers.max()
    if low < 0 or high > 1:
        numbers = (numbers - low) / (high - low).clamp_min(1e-30)
    return (255 * numbers).round().to(torch.uint8)


def side_by_side(pictures: Tensor) -> Tensor:
    """A batch as one picture, nearly square."""
    count = len(pictures)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    apart = pad(pictures, (0, GAP, 0, GAP), value=255) if count > 1 else pictures
    blank = apart.new_full((rows * columns - count, *apart.shape[1:]), 255)
    grid = torch.cat([apart, blank]).unflatten(0, (rows, columns))
    return grid.permute(2, 0, 3, 1, 4).flatten(1, 2).flatten(2, 3)


def shrink(picture: Tensor) -> Tensor:
    longest = max(picture.shape[1:])
    if longest <= MAX_SIDE:
        return picture
    size = [max(1, side * MAX_SIDE // longest) for side in picture.shape[1:]]
    small = interpolate(picture[None].double(), size=size, mode="area")
    return small[0].round().to(torch.uint8)


def to_png(picture: Tensor) -> bytes:
    """The file of a picture of bytes, channels first."""
    channels, height, width = picture.shape
    rows = picture.permute(1, 2, 0).reshape(height, -1)
    pixels = torch.cat([rows.new_zeros(height, 1), rows], dim=1)  # 0: a row without a filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    data = zlib.compress(bytes(pixels.flatten().tolist()), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, body) for kind, body in ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    )


def chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)
