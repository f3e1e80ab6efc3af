"""Which way of a product wins on this device, and the memory of it.

A GPU at work is short of power: an H200 in a training step draws its 700 W and lowers its clock, so
a way that is sooner done in a short trial may draw more and slow down all that follows. Ways are
therefore timed on the operands themselves in turns long enough for the clock to settle, the few
that a short trial leaves beside torch's own product. Chosen among those that give the same bits as
torch's on these operands, so that a choice changes nothing but time. What won is written down for
this machine and version of the library; a way's 64 bytes hold for that version.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from stepladder.record.user_cache import cache_path, replace_whole

from .cublaslt import Product, Shape, Way, version

GAIN = 1.01  # of a way over torch's own; less is noise
# Seconds of a turn: to rule ways out; for the clock to settle; to choose among the rest.
SHORT, SETTLE, LONG = 2e-3, 5e-2, 1e-1
FINALISTS, ROUNDS = 3, 2
TORCH = "torch"  # written where no way was faster

Run = Callable[[Way | None], Tensor]  # the product once, by this way or by torch, from nothing
Same = Callable[[Tensor, Tensor], bool]


def find(shape: Shape, product: Product, run: Run, same: Same = torch.equal) -> Way | None:
    """The way to compute a shape, from what was written down or by trying; None for torch's."""
    key = name_of(shape)
    noted = table().get(key)
    if noted is None or (noted != TORCH and not product.takes(read(noted))):
        won = fastest(same_as_torch(product.ways(), run, same), run)
        note(key, TORCH if won is None else bytes(won.algorithm).hex(), instead_of=noted)
        noted = table()[key]  # another process may have been first: the same for both
    return None if noted == TORCH else read(noted)


def same_as_torch(ways: list[Way], run: Run, same: Same = torch.equal) -> list[Way]:
    """Those whose result is torch's: to the bit, or within what `same` allows, and then all of
    them to the bit what the first gives: which one is chosen changes nothing but time."""
    wanted, kept = run(None).clone(), list[Way]()
    for way in ways:
        got = run(way)
        if same(got, wanted):
            if not kept:
                wanted, same = got.clone(), torch.equal
            kept.append(way)
    return kept


def fastest(ways: list[Way], run: Run) -> Way | None:
    """The way that beats torch's own product most, if one does."""
    sooner = sorted(ways, key=lambda way: seconds(run, way, SHORT))[:FINALISTS]
    order = list(enumerate([None, *sooner]))
    turns: list[list[float]] = [[] for _ in order]
    for _ in range(ROUNDS):
        for index, way in order:
            seconds(run, way, SETTLE)
            turns[index].append(seconds(run, way, LONG))
        order.reverse()  # who comes first finds the chip cooler
    plain, *tried = (median(each) for each in turns)
    best = min(tried, default=plain)
    return sooner[tried.index(best)] if plain > GAIN * best else None


def seconds(run: Run, way: Way | None, turn: float) -> float:
    """Device seconds of one product, over a turn of about this length."""
    run(way)
    once = elapsed(run, way, 1)
    return elapsed(run, way, max(1, round(turn / once)))


def elapsed(run: Run, way: Way | None, times: int) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(times):
        run(way)
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3 / times


def name_of(shape: Shape) -> str:
    words = (str(each).removeprefix("torch.") for each in shape)
    return " ".join(f"{field}={word}" for field, word in zip(shape._fields, words, strict=True))


def read(noted: str) -> Way:
    way = Way()
    way.algorithm[:] = [int.from_bytes(bytes.fromhex(noted)[at : at + 8], "little")
                        for at in range(0, 64, 8)]  # fmt: skip
    return way


def place() -> Path:
    return cache_path(f"products-{version()}", torch.cuda.get_device_name())


@cache
def table() -> dict[str, str]:
    """What was written down; a file that cannot be read is as good as none."""
    try:
        read_in = json.loads(place().read_text())
    except (OSError, ValueError):
        return {}
    items = read_in.items() if isinstance(read_in, dict) else ()
    return {k: v for k, v in items if isinstance(v, str) and (v == TORCH or is_way(v))}


def is_way(noted: str) -> bool:
    return len(noted) == 128 and all(c in "0123456789abcdef" for c in noted)


def note(key: str, found: str, instead_of: str | None = None) -> None:
    """Write a finding down, whole or not at all, beside what others have written meanwhile."""
    path, known = place(), table()
    table.cache_clear()
    for old, value in known.items():
        table().setdefault(old, value)
    if table().get(key) in (None, instead_of):
        table()[key] = found
    with suppress(OSError):  # the next process tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, json.dumps(table(), indent=0, sort_keys=True) + "\n")
